"""A simulation of the coordinator: one event loop that serves many fronts and an engine.

Each iteration of the loop reads what has arrived, and writes once to each front that gets something. Its cost:

    iteration + reads * channel + requests * request + calls * call

A channel costs one read of what a front has sent and one write of what it gets. The more requests arrive in one read,
the less each costs: a coordinator that falls behind becomes faster, up to a limit.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from swiftlet_serve.telemetry.percentile import percentile


class Costs(NamedTuple):
    """CPU time in seconds."""

    iteration: float  # of an iteration of the event loop
    channel: float  # of a read from a front and a write to it
    request: float  # of a request: decode, admit, queue, deliver, encode
    call: float  # of a call to the engine: pack, send, receive, unpack


class Outcome(NamedTuple):
    """What a simulation measured."""

    rate: float  # requests answered in a second
    busy: float  # share of the time that the coordinator works
    p50_s: float  # time that requests spend in the coordinator and the engine
    p99_s: float
    per_call: float  # requests of an engine call, on average


@dataclass(order=True)
class _Event:
    at: float
    front: int = field(compare=False)  # of requests; -1: an engine call has ended
    requests: list[float] = field(compare=False)  # the arrivals of requests


def simulate(
    costs: Costs,
    fronts: int,
    rate: float,
    *,
    calls: int,
    call_s: float,
    row_s: float,
    max_rows: int = 64,
    front_s: float = 150e-6,
    seconds: float = 1.0,
    seed: int = 0,
) -> Outcome:
    """Simulates Poisson arrivals at all fronts together.

    A front handles one request after another, each in `front_s`, and sends what it has handled while the coordinator
    has not read yet. An engine runs `calls` batches at a time, of at most `max_rows` requests, in `call_s` each plus
    `row_s` for each request.
    """
    draw = random.Random(seed)  # a simulation, with the same numbers each time
    events: list[_Event] = []
    free_at = [0.0] * fronts
    at = 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        front = draw.randrange(fronts)
        free_at[front] = max(free_at[front], at) + front_s
        heapq.heappush(events, _Event(free_at[front], front, [at]))
    queue: deque[float] = deque()
    running, now, busy, made, answered = 0, 0.0, 0.0, 0, 0
    waits: list[float] = []
    while events:
        now = max(now, events[0].at)
        arrived: dict[int, int] = {}
        ended: list[float] = []
        work = costs.iteration
        while events and events[0].at <= now:
            event = heapq.heappop(events)
            if event.front < 0:
                running -= 1
                ended += event.requests
                work += costs.call
                continue
            arrived[event.front] = arrived.get(event.front, 0) + 1
            queue += event.requests
        # Results go to as many fronts as there are different ones among them.
        written = min(fronts, len(ended))
        work += costs.channel * (len(arrived) + written) / 2 + costs.request * (sum(arrived.values()) + len(ended)) / 2
        now += work
        busy += work
        waits += [now - start for start in ended]
        answered += len(ended)
        while queue and running < calls:
            share = min(max_rows, -(-len(queue) // (calls - running)))
            batch = [queue.popleft() for _ in range(share)]
            running += 1
            made += 1
            heapq.heappush(events, _Event(now + call_s + row_s * share, -1, batch))
    return Outcome(answered / now, busy / now, percentile(waits, 0.5), percentile(waits, 0.99), answered / max(1, made))
