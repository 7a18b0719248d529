"""The ASGI applications: the public one, and the one of the admin port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NoReturn

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import Scope

from swiftlet_serve import build_info
from swiftlet_serve.errors import MethodNotAllowed, NotFound
from swiftlet_serve.http import dialects, playground
from swiftlet_serve.http.dialect_parts import dialect_endpoint
from swiftlet_serve.http.endpoints import openapi, routes
from swiftlet_serve.http.endpoints.repository_control import RepositoryControl
from swiftlet_serve.http.endpoints.task_endpoint import COMPUTE_HEADERS, TaskEndpoint
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.middleware import RequestMiddleware
from swiftlet_serve.http.gate.request_guard import LIVE, READY, RequestGuard
from swiftlet_serve.http.gate.request_tracker import Observer, RequestTracker
from swiftlet_serve.http.gate.route_table import Route, RouteTable
from swiftlet_serve.http.gate.task_routes import TaskRoutes
from swiftlet_serve.inference.runtime import Runtime

METRICS: Final = "/metrics"
STATUS: Final = "/status"
MODELS: Final = "/models"
CORS: Final[Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": [
        "Authorization",
        "Content-Type",
        "X-API-Key",
        "X-Model-Version",
        "X-Request-Id",
        "X-Request-Priority",
        "X-Request-Timeout-Ms",
        "X-Routing-Key",
    ],
    "expose_headers": ["Retry-After", "Server-Timing", *COMPUTE_HEADERS, "X-Model-Version", "X-Request-Id"],
}
NO_TELEMETRY: Final[Any] = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
"""Disables FastAPI's telemetry, which would record paths, and so possibly users' texts. See `telemetry.tracing`."""


def create_app(runtime: Runtime, keys: ApiKeys | None = None, observers: Sequence[Observer] = ()) -> FastAPI:
    """Creates the public application. It opens the runtime at start-up and closes it at shutdown.

    The server calls `app.state.refuse` with each request's scope before it runs the application, and sends the response
    if there is one. It runs the requests that `app.state.task_routes` finds an endpoint for without the application.
    Both take a fraction of the time.

    Args:
        runtime: the loaded models.
        keys: the API keys that all routes but health checks and the playground require; None requires none.
        observers: called with each finished request record, before the runtime's statistics.
    """
    app = FastAPI(
        title="Swiftlet",
        version=build_info.version(),
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(runtime),
        exception_handlers={HTTPException: _own_errors(runtime.task_names)},
        telemetry=NO_TELEMETRY,
    )
    spoken = {name: dialects.load(name) for name in runtime.settings.dialects or dialects.names()}
    own = {f"/{task}": TaskEndpoint(runtime, task) for task in runtime.task_names}
    endpoints = dialect_endpoint.share(runtime, own, spoken)
    foreign = [route for name, dialect in spoken.items() for route in dialect_endpoint.routes(runtime, name, dialect)]
    table = RouteTable([*(Route(path, endpoint) for path, endpoint in endpoints.items()), *foreign])
    guard = RequestGuard(runtime, keys, table)
    tracker = RequestTracker(runtime, guard, observers)
    app.state.refuse = tracker.begin
    app.add_middleware(RequestMiddleware, tracker=tracker)
    if origins := runtime.settings.cors_origins:  # outermost, so that pages of these origins can read errors too
        app.add_middleware(CORSMiddleware, allow_origins=origins, **CORS)
        app.state.refuse = partial(_refuse_own, tracker, table)
    app.state.task_routes = TaskRoutes(tracker, runtime.settings.max_body_bytes)
    _add_routes(app, runtime, table)
    schemas = [dialect_endpoint.install(app, runtime, name, dialect, table) for name, dialect in spoken.items()]
    openapi.install(app, runtime, schemas)
    return app


def _refuse_own(tracker: RequestTracker, table: RouteTable, scope: Scope) -> Response | None:
    """Begins a request that no page of another origin sends. For the others, only the route is noted."""
    if "origin" not in Headers(scope=scope):
        return tracker.begin(scope)
    scope.setdefault("state", {})["match"] = table.match(scope["path"])  # one that runs a model is no page
    return None


def create_admin_app(runtime: Runtime, control: RepositoryControl | None = None) -> Starlette:
    """Creates the application of the admin port. It runs on another thread and only reads from the runtime.

    `control` loads and unloads the models of a repository. It runs on the runtime's own event loop.
    """
    app = Starlette(
        routes=[
            StarletteRoute(LIVE, routes.live, methods=["GET"]),
            StarletteRoute(READY, routes.ready(runtime), methods=["GET"]),
            StarletteRoute(METRICS, routes.metrics(runtime), methods=["GET"]),
            *([] if control is None else control.routes()),
        ],
        middleware=[Middleware(RequestMiddleware, tracker=RequestTracker(runtime, RequestGuard(runtime)))],
        exception_handlers={HTTPException: _own_errors()},
    )
    app.router.redirect_slashes = False
    return app


def _add_routes(app: FastAPI, runtime: Runtime, table: RouteTable) -> None:
    app.router.route_class = routes.PlainRoute
    for task in runtime.task_names:
        match: Any = table.match(f"/{task}")  # never None
        app.add_api_route(f"/{task}", match.route.endpoint, methods=["POST"], **openapi.task(task))
    app.add_api_route(MODELS, routes.models(runtime), methods=["GET"], **openapi.MODELS)
    app.add_api_route(LIVE, routes.live, methods=["GET"], **openapi.LIVE)
    app.add_api_route(READY, routes.ready(runtime), methods=["GET"], **openapi.READY)
    if runtime.settings.admin_port is None:
        app.add_api_route(METRICS, routes.metrics(runtime), methods=["GET"], **openapi.METRICS)
    app.add_api_route(STATUS, routes.server_status(runtime), methods=["GET"], **openapi.STATUS)
    for path, file in playground.FILES.items():
        app.add_api_route(path, routes.playground_file(file), methods=["GET"], include_in_schema=False)


def _lifespan(runtime: Runtime) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await runtime.open()
        yield
        await runtime.close()

    return lifespan


def _own_errors(tasks: Sequence[str] = ()) -> Any:
    """Returns the handler of Starlette's HTTPException, which raises the service's error for it.

    Clients that are given the server's own address send requests to it. Their error names the routes of `tasks`.
    """

    async def raise_own_error(request: Request, error: Exception) -> NoReturn:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 405 and tasks and (request.method, request.url.path) == ("POST", "/"):
            paths = ", ".join(f"/{task}" for task in tasks)
            detail = f"A request goes to the route of its task, and not to the server's own address. Use {paths}."
            raise NotFound("unknown_route", detail) from None
        if status == 404:
            raise NotFound("unknown_route", "No route has this path. GET /openapi.json lists the routes.") from None
        if status == 405 and isinstance(error, HTTPException):
            detail = "This route does not support the request method. The Allow header lists the supported ones."
            raise MethodNotAllowed("method_not_allowed", detail, headers=error.headers) from None
        raise error

    return raise_own_error
