"""Locust's users: an open loop, whose requests are sent when they are due, and a closed one.

    locust -f loadtest/locustfile.py OpenLoop --host http://127.0.0.1:8000 --headless --rate 20 --shape burst

Locust's own loops are closed: a user asks again once it was answered, so that a slow server is asked less. Here one
user starts all requests, each in a greenlet of its own, and times count from when a request was due, not from when it
was sent. `slo.py` runs the same users and reaches a verdict.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import gevent
from gevent.pool import Group
from geventhttpclient import HTTPClient
from locust import User, events, task
from locust.exception import StopUser

from loadtest.arrivals import SHAPES, read_trace, replayed, shaped
from loadtest.backoff import AGAIN, pause
from loadtest.measurement import Record
from loadtest.workload import TASKS, Body, mix, read

SOAK_S: Final = 1800.0
MOST_CONNECTIONS: Final = 10_000
WRONG: Final = -1  # the status of an answer that is none to what was asked


class Failed(Exception):
    """What Locust counts a request under that was not answered."""


@dataclass
class Load:
    """Where requests go, what they ask, and when: what a Locust environment carries for its users."""

    url: str
    bodies: Sequence[Body]
    times: Sequence[float] = ()  # of the open loop, in seconds from its start
    seconds: float = 0.0  # that the closed loop lasts
    retries: int = 2
    give_up_s: float = 10.0
    headers: Mapping[str, str] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._pick = random.Random(2)
        self._turn = 0
        self._prefix = urlsplit(self.url).path.rstrip("/")
        told = {"Content-Type": "application/json", "X-Request-Timeout-Ms": str(round(1000 * self.give_up_s))}
        self._client = HTTPClient.from_url(
            self.url, concurrency=MOST_CONNECTIONS, network_timeout=self.give_up_s, headers=told | dict(self.headers)
        )

    def place(self, body: Body) -> str:
        """The path that a body goes to: a server may have its routes below one."""
        return self._prefix + body.path

    def ask(self, due: float) -> Record:
        """The next body, as often as a client would send it."""
        body, sent = self.bodies[self._turn % len(self.bodies)], time.monotonic()
        self._turn += 1
        attempt = 0
        while True:
            status, retry_after = self._try(body)
            wait = pause(attempt, retry_after, self._pick)
            attempt += 1
            if status not in AGAIN or attempt > self.retries or time.monotonic() + wait > due + self.give_up_s:
                break
            gevent.sleep(wait)
        record = Record(body.path, due, sent, time.monotonic(), status, attempt)
        self.records.append(record)
        return record

    def _try(self, body: Body) -> tuple[int, float]:
        """Status, and after how many seconds to come back."""
        try:
            response = self._client.post(self.place(body), body.data)
            answer = response.read()
        except Exception:  # whatever it is that went wrong with a connection
            return 0, 0.0
        if response.status_code == 200:
            return (200 if body.answered(answer) else WRONG), 0.0
        named = response.get("retry-after", "")
        return response.status_code, float(named) if named.isdecimal() else 0.0

    def close(self) -> None:
        self._client.close()


class Asking(User):
    abstract = True

    def ask(self, due: float) -> None:
        record = self.environment.load.ask(due)
        self.environment.events.request.fire(
            request_type="POST",
            name=record.path,
            response_time=1000 * (record.ended - due),
            response_length=0,
            exception=None if record.status == 200 else Failed(f"status {record.status}"),
            context={},
        )


class OpenLoop(Asking):
    fixed_count = 1

    @task
    def arrivals(self) -> None:
        load, under_way = self.environment.load, Group()
        load.started = time.monotonic()
        for offset in load.times:
            if (wait := load.started + offset - time.monotonic()) > 0:
                gevent.sleep(wait)
            under_way.spawn(self.ask, load.started + offset)
        under_way.join()
        options = self.environment.parsed_options
        if options and options.headless:  # Locust's command would wait for its own time to be up
            gevent.spawn(self.environment.runner.quit)
        raise StopUser


class ClosedLoop(Asking):
    @task
    def call(self) -> None:
        now = time.monotonic()
        if now > self.environment.load.started + self.environment.load.seconds:
            raise StopUser
        self.ask(now)


def add_options(parser: ArgumentParser) -> None:
    """What the load is: the options that Locust's command and `slo.py` share."""
    parser.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--shape", choices=SHAPES, default="steady", help="how the rate changes over time")
    parser.add_argument("--seconds", type=float, help="how long; half an hour for a soak")
    parser.add_argument("--trace", type=Path, help="arrivals: a file of seconds, one a line; its mean becomes the rate")
    parser.add_argument(
        "--bodies", type=Path, action="append", default=[], help="JSON bodies, one a line; may be repeated"
    )
    routes = [path.removeprefix("/") for path in TASKS]
    parser.add_argument(
        "--task", choices=routes, action="append", default=[], help="of our own bodies only these; may be repeated"
    )
    parser.add_argument("--retries", type=int, default=2, help="how often a client asks again")
    parser.add_argument("--give-up-s", type=float, default=10.0, help="after how long a client gives up")
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE, of every request; may be repeated")


def times_of(options: Any, rate: float, seconds: float, seed: int) -> list[float]:
    """When requests are due, as the options say."""
    if options.trace:
        return replayed(read_trace(options.trace), rate, seconds)
    return shaped(options.shape, rate, seconds, random.Random(seed))


def load_of(options: Any, url: str, **more: Any) -> Load:
    """The load that options describe."""
    headers = {name.strip(): value.strip() for name, _, value in (one.partition(":") for one in options.header)}
    tasks = [f"/{task}" for task in options.task] or list(TASKS)
    bodies = read(options.bodies) if options.bodies else mix(1000, tasks=tasks)
    return Load(url, bodies, retries=options.retries, give_up_s=options.give_up_s, headers=headers, **more)


def seconds_of(options: Any, usual: float) -> float:
    """How long a load lasts."""
    return float(options.seconds or (SOAK_S if options.shape == "soak" else usual))


@events.init_command_line_parser.add_listener
def _options(parser: ArgumentParser) -> None:
    add_options(parser)


@events.test_start.add_listener
def _prepare(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    rate, seconds = options.rate or 10.0, seconds_of(options, 60.0)
    environment.load = load_of(options, environment.host, times=times_of(options, rate, seconds, 1), seconds=seconds)
