"""Runs the service: start-up, serving, draining and shutdown.

The event loop is uvloop. The server opens and closes the runtime itself, and passes requests to the gate of the
application.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import uvloop

from swiftlet_serve import build_info, extras
from swiftlet_serve.errors import SetupError, log_exception
from swiftlet_serve.fronts.sockets import bind_public
from swiftlet_serve.http.connections.listener import Listener, bind
from swiftlet_serve.http.gate import tls
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.credentials import Credentials
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.machine import memory
from swiftlet_serve.machine.process_setup import is_writable, set_up_process
from swiftlet_serve.machine.watchdog import Watchdog
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.logging_setup import QueuedLogHandler
from swiftlet_serve.telemetry.observers import Observers
from swiftlet_serve.telemetry.request_stats import RequestStats

if TYPE_CHECKING:
    from swiftlet_serve.grpc.port import GrpcPort
    from swiftlet_serve.http.connections.port import AdminThread
    from swiftlet_serve.http.gate.gate import Observer
    from swiftlet_serve.repository.manager import ModelManager

log = logging.getLogger(__name__)

CLOSE_S: Final = 5.0  # for the runtime to close
ABORT_S: Final = 0.3  # the same after a second signal


class Addresses(NamedTuple):
    """Where a server listens."""

    public: str
    """URL of the public port."""
    admin: str | None
    """URL of the admin port."""
    grpc: str | None
    """Host and port of the gRPC port."""


Announce = Callable[[Addresses, Runtime], None]
"""Called once the service responds."""


def serve(settings: Settings, announce: Announce) -> None:
    """Loads the models and serves requests until SIGTERM or SIGINT, then finishes the requests in progress.

    Raises:
        ArtifactError, SetupError: a model cannot be served, or a setting is invalid.
    """
    set_up_process()
    logs = QueuedLogHandler(settings.log_level.upper(), kind=settings.log_format)
    observers: Observers | None = None
    started = time.monotonic()
    log.info(
        "starting Swiftlet %s (%s), Python %s, %s",
        build_info.version(),
        build_info.revision()[:12],
        platform.python_version(),
        _changes(settings),
    )
    try:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # the usual soft limit of 1024 is too low for connections
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        credentials = Credentials.read(settings)
        certificate, keys = credentials.certificate, credentials.keys
        public_sockets = bind_public(settings)
        admin_keys = credentials.admin_keys
        admin_socket = None if settings.admin_port is None else bind(settings.admin_host, settings.admin_port)
        observers = Observers.create(settings.traces_endpoint, build_info.version(), logs=settings.access_log)
        if keys is None and not _is_loopback(settings.host):
            log.warning("The server needs no API key, and listens on %s. Set api_keys_file.", settings.host)
        if settings.reuse_port and settings.admin_port is None:
            log.warning("With reuse_port, a request for /metrics reaches any of the servers. Set admin_port.")
        runtime = LocalRuntime.begin(settings)
        # The rest is imported while the worker process loads the models: it takes half a second.
        from swiftlet_serve.fronts.coordinator import Coordinator
        from swiftlet_serve.http.connections.port import AdminThread, Port
        from swiftlet_serve.http.endpoints.repository_control import RepositoryControl
        from swiftlet_serve.http.gates import create_admin_gate
        from swiftlet_serve.migration import live_share
        from swiftlet_serve.repository.create import create_manager

        live_share.check(settings)  # also if only the fronts copy requests
        runtime.wait()
        manager = create_manager(runtime)
        grpc = _create_grpc_port(runtime, keys, observers.all, certificate)
        public: PublicPort
        if settings.fronts > 1:
            live_share.check_paths(runtime)
            public = Coordinator(runtime, public_sockets)
        else:
            gate = live_share.create_public_gate(runtime, keys, observers.all)
            public = Port(gate, Listener(public_sockets[0], credentials.context), settings)
            runtime.use_public_port(public)
        control = None if manager is None or admin_keys is None else RepositoryControl(manager, runtime)
        admin_gate = create_admin_gate(runtime, control, admin_keys)
        admin = None if admin_socket is None else AdminThread(Port(admin_gate, Listener(admin_socket), settings))
        watchdog = Watchdog(lambda: logs.exit(1))
        server = Server(settings, runtime, public, admin, grpc, watchdog, manager, credentials, started)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.run(announce))
        if server.is_stuck:
            log.error("A request does not end. The process exits without waiting for it.")
    finally:
        if observers:
            observers.close()
        is_written = logs.flush_and_stop()
    if server.is_stuck or not is_written:
        os._exit(int(server.is_stuck))  # a normal exit would wait for the thread


def _changes(settings: Settings) -> str:
    """Returns the number of cores, and the settings that differ from their defaults. Of addresses, only their names."""
    fields = Settings.model_fields
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    changed = {name: value for name, value in settings if name != "cores" and value != defaults[name]}
    urls = {"traces_endpoint", "shadow_url"}  # may hold a password
    urls |= {"repository"} if "://" in (settings.repository or "") else set()
    shown = [name if name in urls else f"{name}={value}" for name, value in changed.items()]
    return f"{settings.cores} cores, settings: {', '.join(shown) or 'the defaults'}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _create_grpc_port(
    runtime: Runtime, keys: ApiKeys | None, observers: Sequence[Observer], certificate: tls.Certificate | None
) -> GrpcPort | None:
    """Creates the gRPC port if the settings ask for it.

    Raises:
        SetupError: gRPC is not installed.
    """
    if runtime.settings.grpc_port is None:
        return None
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would log lines in another form
    try:
        from swiftlet_serve.grpc.port import GrpcPort
    except ModuleNotFoundError as error:
        message = f"grpc_port needs the package {error.name!r}. Run: {extras.installation('grpc')}"
        raise SetupError(message) from None
    return GrpcPort(runtime, keys, observers, certificate)


class PublicPort(Protocol):
    """The public port, served by this process or by its fronts."""

    @property
    def url(self) -> str: ...

    async def serve(self) -> None:
        """Lets clients connect, and serves them.

        Raises:
            SetupError: another process listens on the address.
        """

    def leave(self) -> None:
        """Notes that the server stops soon."""

    def reload(self) -> None:
        """Makes other processes reload the API keys and the certificate."""

    async def close(self) -> None:
        """Stops accepting connections. Returns when every request on an open connection is answered."""

    async def abort(self) -> None:
        """Cancels the requests in progress, and closes all connections."""


class Server:
    """Runs the runtime, the ports and the watchdog in the right order."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        public: PublicPort,
        admin: AdminThread | None,
        grpc: GrpcPort | None,
        watchdog: Watchdog,
        manager: ModelManager | None,
        credentials: Credentials,
        started: float,
    ) -> None:
        self.is_stuck = False  # whether the runtime could not be closed in time
        self._credentials = credentials
        self._settings = settings
        self._runtime = runtime
        self._public = public
        self._admin = admin
        self._grpc = grpc
        self._watchdog = watchdog
        self._manager = manager  # of the model repository
        self._started = started  # when the process began to load its models
        self._stop_requested = asyncio.Event()
        self._abort_requested = asyncio.Event()

    async def run(self, announce: Announce) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # one that came earlier takes effect now
        self._watchdog.start()
        try:
            await self._runtime.open()
        except Exception as error:
            log_exception(log, "the engines could not be started", error)
            message = "The engines could not be started. Read the cause in the log above, or run `swiftlet check`."
            raise SetupError(message) from None
        try:
            await self._open()
        except BaseException:
            if self._manager:
                await self._manager.close()
            await self._runtime.close()
            raise
        admin_url = self._admin.port.url if self._admin else None
        addresses = Addresses(self._public.url, admin_url, self._grpc.address if self._grpc else None)
        log.info("ready after %.1f s: %s", time.monotonic() - self._started, ", ".join(filter(None, addresses)))
        if is_writable(sys.stdout):
            announce(addresses, self._runtime)
        else:
            log.warning("The addresses are not printed, because the reader of standard output does not read.")
        await self._stop_requested.wait()
        self._runtime.leave()
        self._public.leave()
        stats = (await self._runtime.snapshot()).stats
        in_flight = sum(model.in_flight for model in stats.models.values())
        log.info("stopping: %d requests are in progress, new ones for %g s", in_flight, self._settings.drain_s)
        if self._manager:
            self._manager.stop()
        await self._finish_requests()
        if self._manager:
            await self._manager.close()
        try:
            await asyncio.wait_for(self._runtime.close(), ABORT_S if self._abort_requested.is_set() else CLOSE_S)
        except TimeoutError:
            self.is_stuck = True
        self._watchdog.stop()
        if self._admin:
            self._admin.stop()
        counts = _counts((await self._runtime.snapshot()).stats)
        log.info("stopped after %.1f s: %s", time.monotonic() - self._started, counts)

    async def _open(self) -> None:
        """Loads the models of a repository, and opens the ports.

        Raises:
            SetupError: a model cannot be served, or a port cannot be opened.
        """
        if self._manager:
            await self._manager.start()
        if self._admin:
            self._admin.start()
        memory.tune_garbage_collector()
        if self._grpc:
            await self._grpc.open()
        await self._public.serve()

    def _reload(self) -> None:
        self._credentials.reload()
        self._public.reload()

    def _on_signal(self) -> None:
        """Stops the server; a second signal cancels the requests in progress."""
        (self._abort_requested if self._stop_requested.is_set() else self._stop_requested).set()

    async def _finish_requests(self) -> None:
        """Drains and closes the public port. Cancels the requests in progress after a timeout or a second signal."""
        closing = asyncio.create_task(self._drain_and_close())
        aborting = asyncio.create_task(self._abort_requested.wait())
        timeout = self._settings.drain_s + self._settings.shutdown_timeout_s
        await asyncio.wait({closing, aborting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        aborting.cancel()
        if not closing.done():
            log.warning("Cancelling the requests in progress.")
            closing.cancel()
            await asyncio.wait({closing})
            await self._public.abort()
            if self._grpc:
                await self._grpc.abort()

    async def _drain_and_close(self) -> None:
        await asyncio.sleep(self._settings.drain_s)
        async with asyncio.TaskGroup() as closing:
            closing.create_task(self._public.close())
            if self._grpc:
                closing.create_task(self._grpc.close())


def _counts(stats: RequestStats) -> str:
    """Returns how many requests had which end."""
    ended = {
        outcome: sum(model.durations[outcome].count for model in stats.models.values())
        for outcome in ("answered", "failed", "cancelled")
    }
    return ", ".join(f"{count} {name}" for name, count in (ended | {"refused": stats.refused.total()}).items())
