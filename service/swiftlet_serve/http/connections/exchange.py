"""A request and its response on one connection.

There are three kinds: a refused request, a request to a task, which the server runs itself, and any other request,
which the ASGI application runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from swiftlet_serve.http.connections.response_transport import ResponseTransport
from swiftlet_serve.http.connections.uvicorn_internals import FlowControl, RequestResponseCycle
from swiftlet_serve.http.gate.route_table import Endpoint
from swiftlet_serve.http.gate.task_routes import TaskRoutes

MAX_BUFFERED_BODY_BYTES: Final = 65_536  # of a body that the ASGI application reads
UVICORN_LOG: Final = logging.getLogger("uvicorn.error")
ACCESS_LOG: Final = logging.getLogger("uvicorn.access")

Tasks = set[asyncio.Task[None]]


class ExchangeConnection(Protocol):
    """The part of a connection that an exchange needs."""

    transport: asyncio.Transport
    flow: FlowControl
    unread: bytes

    @property
    def response_started(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def send_response(self, response: Response, *, keep_alive: bool) -> None: ...
    def close_after_response(self) -> None: ...


class Exchange(Protocol):
    """The part of an exchange that its connection needs."""

    keep_alive: bool  # whether the connection stays open after the response

    @property
    def response_started(self) -> bool: ...
    @property
    def response_complete(self) -> bool: ...

    def receive(self, data: bytes) -> None:
        """Takes the next part of the body."""

    def end_body(self) -> None:
        """Notes that the body is complete."""

    def disconnect(self) -> None:
        """Notes that no response can be sent any more. Has no effect on a complete response."""


class RefusedExchange:
    """A request that is answered before its body is read. The body is discarded."""

    response_started = response_complete = True

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    def receive(self, data: bytes) -> None:
        pass

    def end_body(self) -> None:
        pass

    def disconnect(self) -> None:
        pass


class TaskExchange:
    """A request to a task. It runs as an asyncio task once its body is complete."""

    def __init__(
        self,
        connection: ExchangeConnection,
        routes: TaskRoutes,
        endpoint: Endpoint,
        scope: Scope,
        tasks: Tasks,
        *,
        keep_alive: bool,
    ) -> None:
        """Creates the exchange. `tasks` holds the asyncio task while it runs."""
        self.keep_alive = keep_alive
        self.response_started = self.response_complete = False
        self._connection = connection
        self._tracker = routes.tracker
        self._endpoint = endpoint
        self._scope = scope
        self._tasks = tasks
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._is_disconnected = False

    def receive(self, data: bytes) -> None:
        self._body += data

    def end_body(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    def disconnect(self) -> None:
        if self.response_complete or self._is_disconnected:
            return
        self._is_disconnected = True
        if self._task is None:
            self._tracker.finish(self._scope["state"]["record"], self._scope, None)
        else:
            self._task.cancel()

    async def _run(self) -> None:
        record = self._scope["state"]["record"]
        try:
            response = await self._endpoint.respond(self._scope, self._body)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic of a library in Rust, which is no Exception
            if self._is_disconnected:
                self._tracker.finish(record, self._scope, None)
                return
            response = self._tracker.error_response(self._scope, error)
        self._tracker.add_headers(record, response.raw_headers)
        self._tracker.finish(record, self._scope, response.status_code)
        flow = self._connection.flow
        if flow.write_paused:
            await flow.drain()
        if not self._is_disconnected:
            self.response_started = self.response_complete = True
            self._connection.send_response(response, keep_alive=self.keep_alive)


class RequestFlow:
    """Flow control of one request: an application that reads its body must not let later requests in."""

    def __init__(self, connection: ExchangeConnection) -> None:
        self._connection = connection
        self.drain = connection.flow.drain

    @property
    def write_paused(self) -> bool:
        return self._connection.flow.write_paused

    def resume_reading(self) -> None:
        if not self._connection.unread:
            self._connection.flow.resume_reading()


class AsgiExchange:
    """A request that the ASGI application runs, with uvicorn's implementation of ASGI."""

    def __init__(
        self,
        connection: ExchangeConnection,
        app: ASGIApp,
        scope: Scope,
        tasks: Tasks,
        default_headers: list[tuple[bytes, bytes]],
        on_response: Callable[[], None],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        """Creates the exchange. `start` runs the application in an asyncio task, which `tasks` holds while it runs.

        Args:
            connection: the connection.
            app: the application.
            scope: the request's ASGI scope.
            tasks: the asyncio tasks of the port.
            default_headers: headers of every response.
            on_response: called when the response is complete.
            keep_alive: whether the connection stays open after the response.
            expects_continue: whether the client waits for the status 100 before it sends the body.
        """
        self._response = ResponseTransport(connection, connection.transport.is_closing)
        self._on_response = on_response
        self._flow = connection.flow
        self._cycle = RequestResponseCycle(
            scope=cast(Any, scope),
            transport=cast(asyncio.Transport, self._response),
            flow=cast(FlowControl, RequestFlow(connection)),
            logger=UVICORN_LOG,
            access_logger=ACCESS_LOG,
            access_log=False,
            default_headers=default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=expects_continue,
            keep_alive=keep_alive,
            on_response=self._response_completed,
        )
        self._app = app
        self._tasks = tasks

    def start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._cycle.run_asgi(cast(Any, self._app)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def keep_alive(self) -> bool:
        return self._cycle.keep_alive

    @keep_alive.setter
    def keep_alive(self, value: bool) -> None:
        self._cycle.keep_alive = value

    @property
    def response_started(self) -> bool:
        return self._cycle.response_started

    @property
    def response_complete(self) -> bool:
        return self._cycle.response_complete

    def receive(self, data: bytes) -> None:
        if not self._cycle.response_complete:
            self._cycle.body += data
            self._cycle.message_event.set()
            if len(self._cycle.body) > MAX_BUFFERED_BODY_BYTES:
                self._flow.pause_reading()  # until the application reads

    def end_body(self) -> None:
        self._cycle.more_body = False
        self._cycle.message_event.set()

    def disconnect(self) -> None:
        if not self._cycle.response_complete:
            self._cycle.disconnected = True
        self._cycle.message_event.set()

    def _response_completed(self) -> None:
        self._response.flush()
        self._on_response()
