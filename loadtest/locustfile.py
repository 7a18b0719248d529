"""Locust's users: the open loop and the closed loop of `generator.py`, in Locust's own command and page.

    locust -f loadtest/locustfile.py OpenLoop --host http://127.0.0.1:8000 --headless --rate 20 --shape burst

Locust runs users as greenlets and replaces the standard library's blocking calls. The generator therefore runs on an
event loop in a native thread, and reports each result back to the thread of the greenlets.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))  # Locust imports this file by its path

import gevent
import uvloop
from gevent.event import AsyncResult
from locust import User, events, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.generator import closed_loop
from loadtest.load import Load, add_options, arrival_times, duration_s, load_of
from loadtest.measurement import RequestResult

DEFAULT_RATE: Final = 10.0
DEFAULT_S: Final = 60.0


class RequestFailed(Exception):
    """The failure that Locust counts for a request without a valid response."""


class BackgroundLoop:
    """An event loop in a native thread. Greenlets wait for its coroutines."""

    def __init__(self) -> None:
        hub = gevent.get_hub()
        self._greenlets = hub.loop
        self._loop = uvloop.new_event_loop()
        hub.threadpool.spawn(self._loop.run_forever)

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine to its end. Other greenlets continue meanwhile."""
        ended: AsyncResult[asyncio.Future[None]] = AsyncResult()

        def start() -> None:
            running = self._loop.create_task(coroutine)
            running.add_done_callback(lambda done: self.report(ended.set, done))

        self._loop.call_soon_threadsafe(start)
        if (done := ended.get()) is not None:
            done.result()

    def report(self, function: Callable[..., None], *arguments: object) -> None:
        """Calls a function in the thread of the greenlets."""
        self._greenlets.run_callback_threadsafe(function, *arguments)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class Session:
    """The load of one test run."""

    def __init__(self, environment: Environment) -> None:
        options = environment.parsed_options or Namespace()
        self.seconds = duration_s(options, DEFAULT_S)
        self.times = arrival_times(options, options.rate or DEFAULT_RATE, self.seconds, seed=1)
        self.background = BackgroundLoop()
        self.load: Load = load_of(options, environment.host or "")
        self.load.started = time.monotonic()
        self.load.on_result = lambda result: self.background.report(self._count, result)
        self._environment = environment

    def _count(self, result: RequestResult) -> None:
        self._environment.events.request.fire(
            request_type="POST",
            name=result.path,
            response_time=1000 * (result.ended - result.due),
            response_length=0,
            exception=None if result.status == 200 else RequestFailed(f"status {result.status}"),
            context={},
        )


sessions: dict[Environment, Session] = {}  # by the environment that Locust gives to its users


class OpenLoop(User):
    fixed_count = 1

    @task
    def send_all(self) -> None:
        session = sessions[self.environment]
        session.background.run(session.load.run_open(session.times))
        options, runner = self.environment.parsed_options, self.environment.runner
        if options and options.headless and runner:  # otherwise Locust's command would wait for its own --run-time
            gevent.spawn(runner.quit)
        raise StopUser


class ClosedLoop(User):
    @task
    def send_in_turn(self) -> None:
        session = sessions[self.environment]
        remaining_s = session.load.started + session.seconds - time.monotonic()
        session.background.run(closed_loop([session.load.send], remaining_s))
        raise StopUser


def _add_options(parser: ArgumentParser) -> None:
    add_options(parser)


def _open_session(environment: Environment, **_: object) -> None:
    sessions[environment] = Session(environment)


def _close_session(environment: Environment, **_: object) -> None:
    sessions.pop(environment).background.close()


events.init_command_line_parser.add_listener(_add_options)
events.test_start.add_listener(_open_session)
events.test_stop.add_listener(_close_session)
