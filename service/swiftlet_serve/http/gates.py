"""The gates of the public port and of the admin port, with their routes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from swiftlet_serve import tasks
from swiftlet_serve.http import dialects
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


class PublicGate(Gate):
    """The gate of the public port, which also has a route for the OpenAPI document of its routes."""

    other_routes: Sequence[Any] = ()
    """Routes of an application of FastAPI, which pass no gate. The document describes them as well."""

    def __init__(
        self, runtime: Runtime, routes: Iterable[Route], schemas: Callable[[], Mapping[str, Any]], **given: Any
    ) -> None:
        """`schemas` returns what the descriptions of the routes refer to. `given` are further arguments of a gate."""
        super().__init__(runtime, [*routes, Route("GET", OPENAPI, self._respond)], **given)
        self._schemas = schemas
        self._lock = asyncio.Lock()

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document. To write it takes a fifth of a second of CPU time, and as much to import FastAPI."""
        from swiftlet_serve.http import openapi_document

        return openapi_document.write(self.table.routes, self._schemas(), self.other_routes)

    async def _respond(self, request: Request) -> Response:
        async with self._lock:  # the event loop does not wait while a thread makes the document
            document = await asyncio.to_thread(lambda: self.document)
        if mounted_at := request.head.mounted_at:
            document = {**document, "servers": [{"url": mounted_at}]}
        return JSONResponse(document)


def create_gate(
    runtime: Runtime,
    keys: ApiKeys | None = None,
    observers: Sequence[Observer] = (),
    on_response: OnResponse | None = None,
) -> PublicGate:
    """Creates the gate of the public port.

    Args:
        runtime: the loaded models.
        keys: the API keys that all routes but health checks and the playground require; None requires none.
        observers: called with each finished request record, before the runtime's statistics.
        on_response: called with each request whose body was read, and its response.
    """
    served_dialects = {
        name: dialects.load(name, runtime.settings) for name in runtime.settings.dialects or dialects.names()
    }
    schemas = {name: cache(partial(dialect_routes.schemas, name, dialect)) for name, dialect in served_dialects.items()}
    origins = runtime.settings.cors_origins
    cors = Cors(origins, CORS_ALLOWED, CORS_EXPOSED) if origins else None

    def described() -> Mapping[str, Any]:
        return openapi.schemas(runtime, [describe()[1] for describe in schemas.values()])

    routes = _routes(runtime, served_dialects, schemas)
    return PublicGate(runtime, routes, described, keys=keys, observers=observers, cors=cors, on_response=on_response)


def create_admin_gate(runtime: Runtime, control: RepositoryControl | None = None, keys: ApiKeys | None = None) -> Gate:
    """Creates the gate of the admin port, which runs on another thread. Its pages only read from the runtime.

    `control` loads and unloads the models of a repository for the owners of `keys`, on the runtime's event loop.
    """
    metrics = dataclasses.replace(pages.metrics(runtime), public=True)
    return Gate(runtime, [*pages.health(runtime), metrics, *([] if control is None else control.routes())], keys)


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
