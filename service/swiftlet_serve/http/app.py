"""The applications: the public one, which is FastAPI's, and the gate of the admin port."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request as FastAPIRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from swiftlet_serve import build_info, tasks
from swiftlet_serve.http import dialects
from swiftlet_serve.http.asgi_transport import AsgiTransport
from swiftlet_serve.http.dialect_parts import dialect_routes
from swiftlet_serve.http.dialect_parts.dialect import Dialect
from swiftlet_serve.http.endpoints import openapi, pages
from swiftlet_serve.http.endpoints.batch_endpoint import BatchEndpoint
from swiftlet_serve.http.endpoints.model_endpoint import COMPUTE_HEADERS, ModelEndpoint, task_translation
from swiftlet_serve.http.endpoints.repository_control import RepositoryControl
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.cors import Cors
from swiftlet_serve.http.gate.gate import Gate, Observer, OnResponse
from swiftlet_serve.http.gate.request import Request, Route
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.repository.manager import ModelManager

OPENAPI: Final = "/openapi.json"
CORS_ALLOWED: Final = (
    "Authorization",
    "Content-Type",
    "X-API-Key",
    "X-Model-Version",
    "X-Request-Id",
    "X-Request-Priority",
    "X-Request-Timeout-Ms",
    "X-Routing-Key",
)
CORS_EXPOSED: Final = ("Retry-After", "Server-Timing", *COMPUTE_HEADERS, "X-Model-Version", "X-Receipt", "X-Request-Id")
NO_TELEMETRY: Final[Any] = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
"""Disables FastAPI's telemetry, which would record paths, and perhaps users' texts. See `telemetry.tracing`."""


class Application(FastAPI):
    """The public application. FastAPI describes its routes, and the gate runs them."""

    gate: Gate
    schemas: Callable[[], Mapping[str, Any]]
    """Returns the schemas that the descriptions of the routes refer to."""

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document, which the first call makes. That takes a fifth of a second of CPU time."""
        if not self.openapi_schema:
            described = [_described(route) for route in self.gate.table.routes if route.describe is not None]
            document = get_openapi(title=self.title, version=self.version, routes=[*described, *self.routes])
            document.setdefault("components", {}).setdefault("schemas", {}).update(self.schemas())
            self.openapi_schema = document
        return self.openapi_schema


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
    on_response: OnResponse | None = None,
) -> Application:
    """Creates the public application.

    Our own server and gRPC call its `gate`. Any other ASGI server runs the application, whose lifespan opens and closes
    the runtime and the manager. A mounted application has no lifespan: its first request opens them.

    Args:
        runtime: the loaded models.
        keys: the API keys that all routes but health checks and the playground require; None requires none.
        observers: called with each finished request record, before the runtime's statistics.
        manager: follows a model repository; None without one.
        on_response: called with each request whose body was read, and its response.
    """
    opening = Opening(runtime, manager)
    app = Application(
        title="Swiftlet",
        version=build_info.version(),
        openapi_url=None,  # the gate serves the document
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        lifespan=opening.lifespan,
        telemetry=NO_TELEMETRY,
    )
    served_dialects = {
        name: dialects.load(name, runtime.settings) for name in runtime.settings.dialects or dialects.names()
    }
    schemas = {name: cache(partial(dialect_routes.schemas, name, dialect)) for name, dialect in served_dialects.items()}
    origins = runtime.settings.cors_origins
    cors = Cors(origins, CORS_ALLOWED, CORS_EXPOSED) if origins else None
    routes = [*_routes(runtime, served_dialects, schemas), _openapi_route(app)]
    app.gate = Gate(runtime, routes, keys, observers, cors, on_response=on_response)
    transport = AsgiTransport(app.gate, opening.open)
    app.router.routes += [GateRoute(route.path, transport, methods=[route.method]) for route in app.gate.table.routes]
    app.router.default = transport
    app.schemas = lambda: openapi.schemas(runtime, [describe()[1] for describe in schemas.values()])
    return app


def create_admin_gate(runtime: Runtime, control: RepositoryControl | None = None, keys: ApiKeys | None = None) -> Gate:
    """Creates the gate of the admin port, which runs on another thread. Its pages only read from the runtime.

    `control` loads and unloads the models of a repository for the owners of `keys`, on the runtime's event loop.
    """
    metrics = dataclasses.replace(pages.metrics(runtime), public=True)
    return Gate(runtime, [*pages.health(runtime), metrics, *([] if control is None else control.routes())], keys)


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


def _routes(
    runtime: Runtime, served_dialects: Mapping[str, Dialect], schemas: Mapping[str, dialect_routes.Schemas]
) -> Iterator[Route]:
    """Returns all routes. Of two with the same path, the first one counts."""
    for task in runtime.task_names:
        foreign = dialect_routes.sharing(runtime, f"/{task}", tasks.load(task).TASK.Request, served_dialects)
        yield Route(
            "POST",
            f"/{task}",
            ModelEndpoint(runtime, task_translation(runtime, task), foreign).respond,
            runs_model=True,
            reads_body=True,
            json_only=True,
            describe=partial(openapi.task, task),
        )
    yield Route(
        "POST",
        "/batch",
        BatchEndpoint(runtime).respond,
        runs_model=True,
        reads_body=True,
        json_only=True,
        describe=openapi.batch,
    )
    yield pages.served_models(runtime)
    yield from pages.health(runtime)
    if runtime.settings.admin_port is None:
        yield pages.metrics(runtime)
    yield pages.server_status(runtime)
    yield from pages.playground_files(runtime.task_names)
    for name in served_dialects:
        yield from dialect_routes.routes(runtime, name, served_dialects, schemas[name])


def _described(route: Route) -> APIRoute:
    """Returns a route as FastAPI describes it."""
    about = {} if route.describe is None else route.describe()
    described = APIRoute(route.path, _answer, methods=[route.method], **about)
    described.description = about.get("description") or ""  # FastAPI takes the docstring of the function otherwise
    return described


async def _answer(request: FastAPIRequest) -> Response:
    """Stands for every route in FastAPI, which only reads its signature."""
    raise NotImplementedError(request.url.path)


def _openapi_route(app: Application) -> Route:
    lock = asyncio.Lock()

    async def respond(request: Request) -> Response:
        async with lock:  # the event loop does not wait while a thread makes the document
            document = await asyncio.to_thread(app.openapi)
        if mounted_at := request.head.mounted_at:
            document = {**document, "servers": [{"url": mounted_at}]}
        return JSONResponse(document)

    return Route("GET", OPENAPI, respond)
