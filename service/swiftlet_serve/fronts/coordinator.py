"""The public port of a server with fronts: starts the fronts, replaces lost ones and merges their statistics.

The kernel spreads new connections over the listening sockets of all fronts (SO_REUSEPORT). The coordinator holds these
sockets too: a socket outlives its front. While a front is lost, the others accept its connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final

from swiftlet_serve.errors import SetupError
from swiftlet_serve.fronts import load_page, messages, stats_messages
from swiftlet_serve.fronts.front_config import FrontConfig
from swiftlet_serve.fronts.front_process import ENDED, FrontProcess
from swiftlet_serve.fronts.load_page import LoadState, LoadWriter
from swiftlet_serve.fronts.messages import Kind
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.machine.child_process import REAP_S, back_off_s, exit_text, make_spawner
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.telemetry.snapshot import Snapshot

log = logging.getLogger(__name__)

BACKLOG: Final = 2048  # of each listening socket
START_TIMEOUT_S: Final = 300.0
REPORT_TIMEOUT_S: Final = 1.0  # for a front to report; its last report counts after that
PUBLISH_S: Final = 0.1  # between two checks of the load of an idle server
LEAST_PUBLISH_S: Final = 0.001  # between two checks of the load of a busy server
LOOK_S: Final = 0.05  # between two searches for the clients with the most work
STABLE_S: Final = 10.0  # a front that ran for this time starts again without a delay
# Each front reports every second. A front that sends nothing for this time is stopped or blocked. If only its event
# loop is blocked, the front exits earlier and logs where.
MAX_SILENCE_S: Final = 7.0


class Coordinator:
    """All fronts of a server. The process that runs it owns the queue and the engines."""

    def __init__(self, runtime: LocalRuntime, sockets: Sequence[socket.socket]) -> None:
        """Creates the coordinator of as many fronts as there are sockets, which are bound and do not listen yet.

        Raises:
            SetupError: the system has no memory that processes share.
        """
        self.url = ""
        self.restarts = 0
        self._runtime = runtime
        self._sockets = sockets
        hosted = {name: one for name, one in runtime.pipelines.items() if not one.model.member_names}
        self._models = list(hosted)  # the fronts make the ensembles
        self._keys = [pipeline.key for pipeline in hosted.values()]  # of models that share a trunk: equal
        self._fronts: dict[int, FrontProcess] = {}  # that are ready, by the index of their socket
        self._starting: set[FrontProcess] = set()
        self._lost: dict[FrontProcess, asyncio.Event] = {}  # of every front that runs, set when it is lost
        self._retired = RequestStats()  # of the fronts that were lost
        self._supervising: list[asyncio.Task[None]] = []
        self._leaving = False
        self._closing = False
        self._writer_fd, self._reader_fd = load_page.create()
        self._load = LoadWriter(self._writer_fd)
        self._published = 0.0
        self._looked = 0.0
        self._busy: dict[int, tuple[float, float]] = {}  # waits of the clients with the most work
        self._publish_scheduled = False
        self._titles: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawner = make_spawner()
        runtime.use_public_port(self)

    async def serve(self) -> None:
        """Starts the fronts, and lets clients connect once all of them are ready.

        Raises:
            SetupError: a front cannot be started, or another process listens on the address.
        """
        self._update()
        fronts = await asyncio.gather(*map(self._start, range(len(self._sockets))))
        try:
            for sock in self._sockets:
                sock.listen(BACKLOG)
        except OSError as error:
            raise SetupError(f"Cannot listen on the public port: {error.strerror}.") from None
        for front in fronts:
            self._open(front)
        self._supervising = [asyncio.create_task(self._supervise(front)) for front in fronts]

    def leave(self) -> None:
        """Tells the fronts that the server stops soon."""
        self._leaving = True
        self._order(Kind.LEAVE)

    def reload(self) -> None:
        """Makes the fronts reload the API keys and the certificate."""
        self._order(Kind.RELOAD)

    async def close(self) -> None:
        """Closes all fronts. Returns once each has answered every request on its open connections."""
        await self._close(Kind.CLOSE)

    async def abort(self) -> None:
        """Cancels the requests in progress, and closes all fronts."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._close(Kind.ABORT), REAP_S)
        for front in list(self._lost):
            front.kill()

    async def _close(self, kind: Kind) -> None:
        self._closing = True
        for task in self._supervising:
            task.cancel()
        for sock in self._sockets:
            sock.close()  # the kernel refuses clients once the fronts have closed theirs as well
        if self._timer is not None:
            self._timer.cancel()
        for front in list(self._starting):
            front.kill()
        self._order(kind)
        await asyncio.gather(*(lost.wait() for lost in self._lost.values()))

    def _order(self, kind: Kind, number: int = 0) -> None:
        for front in self._fronts.values():
            front.order(kind, number)

    async def _start(self, index: int) -> FrontProcess:
        """Starts a front and waits until it is ready to listen.

        Raises:
            SetupError: the process cannot be started, or has ended.
        """
        loop = asyncio.get_running_loop()
        front = await loop.run_in_executor(self._spawner, self._spawn, index)
        self._lost[front] = asyncio.Event()
        self._starting.add(front)
        try:
            await front.connect(self._runtime, self._keys, self._on_lost, self._send_snapshot, self._schedule_publish)
            assert front.ready is not None  # noqa: S101  # for the type checker
            self.url = await asyncio.wait_for(front.ready, START_TIMEOUT_S)
            if self._lost[front].is_set():  # just after it was ready, and before this task ran on
                raise SetupError(ENDED)  # noqa: TRY301  # like all errors of the start
        except BaseException as error:
            front.kill()
            self._on_lost(front)
            del self._lost[front]
            if isinstance(error, TimeoutError):
                raise SetupError(f"A front process was not ready after {START_TIMEOUT_S:g} s.") from None
            raise
        finally:
            self._starting.discard(front)
        self._fronts[index] = front
        front.send(messages.pack_json(Kind.TITLES, self._titles))
        if self._leaving:
            front.order(Kind.LEAVE)
        return front

    def _spawn(self, index: int) -> FrontProcess:
        near, far = socket.socketpair()
        executor, pipelines = self._runtime.dispatcher.executor, self._runtime.pipelines
        config = FrontConfig(
            index,
            far.fileno(),
            self._reader_fd,
            [sock.fileno() for sock in self._sockets],
            self._runtime.settings.model_dump(mode="json"),
            [str(pipelines[name].model.artifact.path) for name in self._models],
            {name: asdict(executor.cost(key)) for name, key in zip(self._models, self._keys, strict=True)},
            {name: pipelines[name].head for name in self._models},
        )
        with far:
            try:
                return FrontProcess(config, near)
            except SetupError:
                near.close()
                raise

    def _open(self, front: FrontProcess) -> None:
        """Lets a ready front accept connections."""
        front.order(Kind.OPEN)
        self._order(Kind.DISOWN, front.index)
        for index in range(len(self._sockets)):
            if index not in self._fronts:
                front.order(Kind.ADOPT, index)
        log.info("front process %d is ready", front.pid)

    async def _supervise(self, front: FrontProcess) -> None:
        """Replaces a front whenever it is lost."""
        failures = 0
        while True:
            ready_at = time.monotonic()
            await self._lost[front].wait()
            failures = 0 if time.monotonic() - ready_at >= STABLE_S else failures + 1
            while True:
                if failures:
                    await asyncio.sleep(back_off_s(failures))
                try:
                    replacement = await self._start(front.index)
                except Exception as error:  # this loop must not end
                    failures += 1
                    log.error("front process failed to start (attempt %d): %s", failures, error)  # noqa: TRY400  # the message suffices
                    continue
                break
            del self._lost[front]
            front = replacement  # the next one in its place
            self._open(front)

    def _on_lost(self, front: FrontProcess) -> None:
        """Keeps the statistics of a lost front, and lets the others accept its connections."""
        lost = self._lost.get(front)
        if lost is None or lost.is_set():
            return
        lost.set()
        was_ready = self._fronts.get(front.index) is front
        if was_ready:
            del self._fronts[front.index]
        stats = front.report.stats
        stats.end_in_flight(time.monotonic() - front.reported_at)
        self._retired.add(stats)
        if not self._closing:
            front.kill()
            if was_ready:
                self.restarts += 1
                self._order(Kind.ADOPT, front.index)
        asyncio.get_running_loop().run_in_executor(None, self._reap, front)

    def _reap(self, front: FrontProcess) -> None:
        front.reap()
        if front.exit_status != 0 or not self._closing:
            log.error("front process %d ended %s", front.pid, exit_text(front.exit_status))

    # The state of the server

    def _send_snapshot(self, front: FrontProcess, number: int) -> None:
        async def send() -> None:
            snapshot = await self._runtime.snapshot()
            fields = stats_messages.dump_snapshot(snapshot, os.getpid())
            front.send(messages.pack_json(Kind.SNAPSHOT, fields, number))

        task = asyncio.create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def extend(self, snapshot: Snapshot) -> Snapshot:
        """Adds what the fronts know to a snapshot of this process."""
        await asyncio.gather(*(front.ask_report(REPORT_TIMEOUT_S) for front in self._fronts.values()))
        alive, stats = list(self._fronts.values()), snapshot.stats
        stats.add(self._retired)
        for front in alive:
            stats.add(front.report.stats)
        return replace(
            snapshot,
            connections=sum(front.report.connections for front in alive),
            loop_lag_s=max([snapshot.loop_lag_s, *(front.report.loop_lag_s for front in alive)]),
            workers={**snapshot.workers, **{f"front {front.index + 1}": front.pid for front in alive}},
            fronts=len(alive),
            front_restarts=self.restarts,
        )

    # The load page

    def _update(self) -> None:
        """Publishes the load, and the titles of the engines if they have changed. Replaces a front that is silent."""
        self._publish()
        titles = {name: self._runtime.engine_title(self._runtime.pipelines[name]) for name in self._models}
        if titles != self._titles:
            self._titles = titles
            for front in self._fronts.values():
                front.send(messages.pack_json(Kind.TITLES, titles))
        for front in list(self._fronts.values()):
            front.silent_ticks += 1  # unlike a clock, a count does not grow while this process is suspended
            if front.silent_ticks * PUBLISH_S > MAX_SILENCE_S:
                log.error("killing front process %d: it has sent nothing for %g s", front.pid, MAX_SILENCE_S)
                self._on_lost(front)
        self._timer = asyncio.get_running_loop().call_later(PUBLISH_S, self._update)

    def _schedule_publish(self) -> None:
        """Publishes the load at the end of the iteration, unless that was done just before."""
        if not self._publish_scheduled and time.monotonic() - self._published > LEAST_PUBLISH_S:
            self._publish_scheduled = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        runtime = self._runtime
        load, executor = runtime.dispatcher.load(), runtime.dispatcher.executor
        self._publish_scheduled, self._published = False, load.now
        if load.now - self._looked >= LOOK_S:
            self._looked = load.now
            self._busy = {load_page.number_of(name): self._waits(name) for name in load.busiest(load_page.MAX_CLIENTS)}
        coefficients = [load.models[key].latency.coefficients for key in self._keys]
        mean_s = runtime.admission.mean_request_s
        head = load.now, executor.ready, runtime.draining, load.cores
        state = LoadState(*head, *self._waits(""), mean_s, self._busy, coefficients)
        self._load.write(state)

    def _waits(self, client: str) -> tuple[float, float]:
        """Predicts the waits of a client's next interactive and bulk requests."""
        admission = self._runtime.admission
        return admission.wait_of(client, "interactive"), admission.wait_of(client, "bulk")
