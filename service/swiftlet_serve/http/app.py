"""The public application, which is FastAPI's, for other ASGI servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from swiftlet_serve import build_info
from swiftlet_serve.http.asgi_transport import AsgiTransport
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.gate import Observer
from swiftlet_serve.http.gates import PublicGate, create_gate
from swiftlet_serve.http.openapi_document import TITLE
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.repository.manager import ModelManager

NO_TELEMETRY: Final[Any] = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
"""Disables FastAPI's telemetry, which would record paths, and perhaps users' texts. See `telemetry.tracing`."""


class Application(FastAPI):
    """The public application. FastAPI describes its routes, and the gate runs them."""

    gate: PublicGate

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document, which the first call makes."""
        return self.gate.document


class GateRoute(StarletteRoute):
    """A route of the table. Every method of its path goes through the gate."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return (match if match is Match.NONE else Match.FULL), child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def create_app(
    runtime: Runtime,
    keys: ApiKeys | None = None,
    observers: Sequence[Observer] = (),
    manager: ModelManager | None = None,
) -> Application:
    """Creates a gate, and the application in front of it. Takes what `create_gate` and `wrap` take."""
    return wrap(create_gate(runtime, keys, observers), runtime, manager)


def wrap(gate: PublicGate, runtime: Runtime, manager: ModelManager | None = None) -> Application:
    """Returns the application for other ASGI servers. Our own server and gRPC call the gate without it.

    Its lifespan opens and closes the runtime and the manager. A mounted application has no lifespan: its first request
    opens them.

    Args:
        gate: runs the requests.
        runtime: the loaded models.
        manager: follows a model repository; None without one.
    """
    opening = Opening(runtime, manager)
    app = Application(
        title=TITLE,
        version=build_info.version(),
        openapi_url=None,  # the gate serves the document
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        lifespan=opening.lifespan,
        telemetry=NO_TELEMETRY,
    )
    app.gate = gate
    transport = AsgiTransport(gate, opening.open)
    app.router.routes += [GateRoute(route.path, transport, methods=[route.method]) for route in gate.table.routes]
    app.router.default = transport
    gate.other_routes = app.routes
    return app


class Opening:
    """Opens and closes what the application needs, once."""

    def __init__(self, runtime: Runtime, manager: ModelManager | None) -> None:
        self._runtime = runtime
        self._manager = manager
        self._opened: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Opens the runtime and starts the manager. Has no effect after the first call."""
        if self._opened is None:
            self._opened = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opened)

    async def _open(self) -> None:
        if not self._runtime.is_open:
            await self._runtime.open()
        if self._manager is not None:
            await self._manager.start()

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Opens everything, and closes it in the reverse order."""
        await self.open()
        yield
        if self._manager is not None:
            await self._manager.close()
        await self._runtime.close()
