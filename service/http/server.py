"""Runs the application: its ports from start to shutdown.

The protocol, its parser and the event loop are uvicorn's. Its server is not: it closes its listener first and waits
afterwards, so that a request which was on its way is lost with every restart.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import ssl
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Scope
from uvicorn.server import ServerState

from swiftlet_serve.service import memory
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.http import openapi
from swiftlet_serve.service.http.api_keys import Keys
from swiftlet_serve.service.http.app import create_admin, create_app
from swiftlet_serve.service.http.connection import limited
from swiftlet_serve.service.http.limits import Limits
from swiftlet_serve.service.http.listener import Listener, bind
from swiftlet_serve.service.http.watchdog import Watchdog
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.telemetry import access_log
from swiftlet_serve.service.telemetry.logging_setup import QueuedLogHandler

if TYPE_CHECKING:
    from swiftlet_serve.service.telemetry.tracing import Tracer

log = logging.getLogger(__name__)

SILENT_S: Final = 1.0  # for a new connection to begin its request, once the server closes
GIVE_UP_S: Final = 0.3  # for requests that are cancelled to be answered
CLOSE_S: Final = 5.0  # for the runtime, where nobody is in a hurry
OTLP: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
LOOK_S: Final = 0.02  # between two looks at what connections are left


def serve(settings: Settings, announce: Callable[[str, str | None, Runtime], None]) -> None:
    """Loads the models, serves until SIGTERM or SIGINT, drains, and lets the requests under way finish.

    `announce` is called as soon as the service answers, with its URL and that of its own port, if it has one.

    Raises:
        ArtifactError, SetupError: a model cannot be served, or a setting does not work.
    """
    memory.limit_heap_growth()
    # Each text is read on one thread. Those of the library would take turns with the engine's for the same cores, and
    # whoever asked waits for the last of them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logs = QueuedLogHandler(settings.log_level.upper(), kind=settings.log_format)
    tracer: Tracer | None = None
    try:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # the usual soft limit is 1024, and a connection is one
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        tls = _tls(settings.tls_cert, settings.tls_key)
        keys = None if settings.api_keys_file is None else Keys.read(settings.api_keys_file)
        bound = bind(settings.host, settings.port, settings.reuse_port)
        bound_admin = None if settings.admin_port is None else bind(settings.admin_host, settings.admin_port)
        tracer = _tracer(settings.traces_endpoint)
        if settings.reuse_port and settings.admin_port is None:
            log.warning("With reuse_port and no admin_port, /metrics is that of one of the servers, whichever answers.")
        observers = [
            *([access_log.log_request] if settings.access_log else []),
            *([tracer.trace_request] if tracer else []),
        ]
        runtime = Runtime.start(settings)
        app = create_app(runtime, keys, observers)
        public = Port(app, Listener(bound, tls), settings, runtime.stats.refuse, app.state.refuse)
        admin = None if bound_admin is None else Port(create_admin(runtime), Listener(bound_admin), settings)
        server = Server(settings, runtime, public, admin, Watchdog(lambda: _leave(logs)))
        with asyncio.Runner(loop_factory=public.config.get_loop_factory()) as runner:
            runner.run(server.run(announce))
        if server.stuck:
            log.error("A request does not end; leaving without it.")
    finally:
        if tracer:
            tracer.close()
        written = logs.flush_and_stop()
    if server.stuck or not written:
        os._exit(1)  # the interpreter would wait for the thread


def _tracer(endpoint: str | None) -> Tracer | None:
    """Raises SetupError where traces are wanted by setting and cannot be made."""
    if endpoint is None and not any(os.environ.get(name) for name in OTLP):
        return None
    try:
        from swiftlet_serve.service.telemetry.tracing import Tracer
    except ModuleNotFoundError as error:
        needed = f"Traces need the package {error.name!r}: pip install 'swiftlet[otel]'."
        if endpoint is not None:
            raise SetupError(needed) from None
        log.warning("%s There are none.", needed)  # the environment may be meant for others
        return None
    return Tracer.over_http(endpoint, openapi.version())


def _leave(logs: QueuedLogHandler) -> None:
    logs.flush_and_stop()
    os._exit(1)


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Raises SetupError where the files do not make a TLS server."""
    if cert is None:
        if key is not None:
            raise SetupError("tls_key is set and tls_cert is not: a key alone makes no TLS.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # its minimum is TLS 1.2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")  # or it would ask the terminal for one
    except ssl.SSLError as error:
        said = "are no certificate and the key that belongs to it, in PEM and without a password"
        raise SetupError(f"{cert} and {key or cert} {said} ({error.reason or 'unreadable'}).") from None
    except OSError as error:
        raise SetupError(f"{cert} or {key or cert} cannot be read: {error.strerror}.") from None
    return context


class Port:
    """One address, the application behind it, and the connections that came to it."""

    def __init__(
        self,
        app: ASGIApp,
        listener: Listener,
        settings: Settings,
        refused: Callable[[str], None] = lambda _: None,
        refuse: Callable[[Scope], Response | None] = lambda _: None,
    ) -> None:
        """`refused` and `refuse` as in `limited`."""
        protocol = limited(Limits(proxies=settings.trusted_proxies), refused, refuse)
        self._read_scheduler = protocol.room.read_scheduler
        self.config = uvicorn.Config(
            app,
            loop="uvloop",
            http=protocol,
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            log_level=None if settings.log_level == "debug" else "warning",
            server_header=False,
            proxy_headers=False,
        )
        self.config.load()
        self._state = ServerState()
        self._listener = listener

    @property
    def url(self) -> str:
        host, port = self._listener.address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared with, not bound to
        scheme = "https" if self._listener.tls else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def listen(self) -> None:
        """Raises SetupError where the address is taken."""
        self._listener.listen()

    def open(self) -> None:
        self._date()
        self._listener.open(self._protocol, lambda: self._read_scheduler.behind)

    async def close(self) -> None:
        """Takes no new connection, and returns when the last request that came over the others is answered."""
        await self._listener.close()
        closed = time.monotonic()
        while self._connections:
            silent = time.monotonic() - closed > SILENT_S
            for connection in list(self._connections):
                if _is_idle(connection, silent):
                    connection.shutdown()
            await asyncio.sleep(LOOK_S)

    async def give_up(self) -> None:
        """Cancels the requests under way, which are answered 503, and leaves clients who do not take it."""
        for request in self._state.tasks:
            request.cancel()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=GIVE_UP_S)
        for connection in list(self._connections):
            connection.transport.close()
        await asyncio.sleep(LOOK_S)
        for connection in list(self._connections):
            connection.transport.abort()

    @property
    def _connections(self) -> set[Any]:
        return self._state.connections

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]  # uvicorn declares a plain asyncio.Protocol
            config=self.config,
            server_state=self._state,
            app_state={},
            _loop=asyncio.get_running_loop(),
        )

    def _date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        asyncio.get_running_loop().call_later(1, self._date)


def _is_idle(connection: Any, silent: bool) -> bool:
    """Whether nobody waits for anything on it; `silent` is whether one that never sent a byte counts as such."""
    if connection.scope is None:
        return silent
    begun = connection.cycle is None or connection.cycle.scope is not connection.scope  # a head that is incomplete
    return not begun and connection.cycle.response_complete


class Server:
    """The order of things: start, serve, drain, finish."""

    def __init__(
        self, settings: Settings, runtime: Runtime, public: Port, admin: Port | None, watchdog: Watchdog
    ) -> None:
        self.stuck = False  # whether it had to leave while something ran
        self._settings = settings
        self._runtime = runtime
        self._public = public
        self._admin = None if admin is None else Apart(admin)
        self._watchdog = watchdog
        self._told = asyncio.Event()
        self._told_twice = asyncio.Event()

    async def run(self, announce: Callable[[str, str | None, Runtime], None]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)
        self._watchdog.start()
        lifespan = self._public.config.lifespan_class(self._public.config)
        await lifespan.startup()
        if lifespan.should_exit:
            raise SetupError("The engines could not be started; the log says why.")
        if self._admin:
            self._admin.start()
        gc.collect()
        gc.freeze()  # what is there now stays: to look through it again and again would hold everybody up
        # Nor is what came since looked through often: with 2,000 connections that takes 20 ms and more each time, and
        # requests leave no cycles behind.
        gc.set_threshold(100_000)
        self._public.listen()
        self._public.open()
        announce(self._public.url, self._admin.port.url if self._admin else None, self._runtime)
        await self._told.wait()
        self._runtime.leaving = True
        await self._finish()
        try:
            await asyncio.wait_for(lifespan.shutdown(), GIVE_UP_S if self._told_twice.is_set() else CLOSE_S)
        except TimeoutError:
            self.stuck = True
        self._watchdog.stop()
        if self._admin:
            self._admin.stop()

    def _stop(self) -> None:
        (self._told_twice if self._told.is_set() else self._told).set()

    async def _finish(self) -> None:
        """Drains and closes; who is not done when the time is up, or at a second signal, is given up."""
        closing = asyncio.create_task(self._drain())
        hurry = asyncio.create_task(self._told_twice.wait())
        allowed = self._settings.drain_s + self._settings.shutdown_timeout_s
        await asyncio.wait({closing, hurry}, timeout=allowed, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not closing.done():
            log.warning("Giving up the requests that are under way.")
            closing.cancel()
            await asyncio.wait({closing})
            await self._public.give_up()

    async def _drain(self) -> None:
        await asyncio.sleep(self._settings.drain_s)
        await self._public.close()


class Apart(threading.Thread):
    """Serves a port on an event loop of its own, which answers however busy the other one is."""

    def __init__(self, port: Port) -> None:
        super().__init__(name="admin", daemon=True)
        self.port = port
        self._opened = threading.Event()

    def start(self) -> None:
        """Returns when it answers; raises SetupError where the address is taken."""
        self.port.listen()
        super().start()
        self._opened.wait()

    def run(self) -> None:
        asyncio.run(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._told.set)
        self.join(GIVE_UP_S)

    async def _serve(self) -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        self.port.open()
        self._opened.set()
        await self._told.wait()
