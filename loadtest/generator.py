"""The load generators: open loop, closed loop, and a list of requests. All load tests send through one of them.

An open loop sends each request when it is due, whether or not earlier ones were answered. A closed loop slows down with
the server, which hides the effects of an overload. Latency counts from the time a request was due.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

Item = TypeVar("Item")
Send: TypeAlias = Callable[[float], Awaitable[None]]  # gets the due time of its request, of time.monotonic()


async def open_loop(times: Iterable[float], send: Send) -> float:
    """Calls `send(due)` at each of the times, in seconds from now, and returns when all calls have ended.

    Returns:
        The largest lateness of a call, in seconds. If it is large, the generator was the bottleneck.
    """
    started, lateness = time.monotonic(), 0.0
    in_flight: set[asyncio.Future[None]] = set()
    for offset in times:
        due = started + offset
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        lateness = max(lateness, time.monotonic() - due)
        call = asyncio.ensure_future(send(due))
        in_flight.add(call)
        call.add_done_callback(in_flight.discard)
    await asyncio.gather(*in_flight)
    return lateness


async def closed_loop(
    senders: Sequence[Send],
    seconds: float = math.inf,
    *,
    interval_s: float = 0.0,
    stopped: asyncio.Event | None = None,
) -> None:
    """Calls each sender again when its previous call has ended, for `seconds` or until `stopped` is set.

    With `interval_s`, each sender is called at most once per interval, and their calls are spread over the interval.
    """
    started = time.monotonic()

    async def repeat(send: Send, due: float) -> None:
        while due < started + seconds and not (stopped is not None and stopped.is_set()):
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            await send(due)
            due = max(due + interval_s, time.monotonic())

    spacing = interval_s / max(1, len(senders))
    await asyncio.gather(*(repeat(send, started + number * spacing) for number, send in enumerate(senders)))


async def send_all(items: Iterable[Item], send: Callable[[Item], Awaitable[None]], concurrency: int) -> None:
    """Calls `send` once for each item, with at most `concurrency` calls in flight."""
    remaining = iter(items)

    async def work() -> None:
        for item in remaining:
            await send(item)

    await asyncio.gather(*(work() for _ in range(concurrency)))
