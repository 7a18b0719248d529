"""The routes of a dialect, in the route table and in the application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import Scope

from swiftlet_serve.http.dialect_parts.dialect import Call, Dialect, Operation, Page
from swiftlet_serve.http.endpoints import bodies, json_items
from swiftlet_serve.http.endpoints.openapi import SCHEMAS
from swiftlet_serve.http.endpoints.task_endpoint import ModelEndpoint, Translation, route_of
from swiftlet_serve.http.gate.route_table import RenderError, Route, RouteTable
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.types.body_model import BodyModel


class DialectEndpoint(ModelEndpoint):
    """The endpoint of an operation."""

    def __init__(self, runtime: Runtime, name: str, operation: Operation) -> None:
        super().__init__(runtime, json_only=operation.json_only)
        self.operation = operation
        self._name = name
        runtime.stats.dialects[name, "2xx"] += 0  # a counter begins at 0

    def translate(self, scope: Scope, body: bytes | bytearray) -> Translation:
        scope["state"]["record"].dialect = self._name
        call = Call(scope["state"]["match"].parameters, scope["headers"], body, route_of(scope))
        return self.operation.translate(self.runtime, call)


class SharedEndpoint(ModelEndpoint):
    """The endpoint of a task's route that a dialect uses, too. The fields of a body tell whose it is."""

    def __init__(self, own: ModelEndpoint, foreign: DialectEndpoint, render_error: RenderError) -> None:
        """`render_error` is that of the dialect."""
        super().__init__(own.runtime)
        self._own = own
        self._foreign = foreign
        self._render_error = render_error
        self._quoted = [f'"{name}"'.encode() for name in sorted(foreign.operation.fields)]

    def translate(self, scope: Scope, body: bytes | bytearray) -> Translation:
        if not self._is_foreign(body):
            return self._own.translate(scope, body)
        scope["state"]["render_error"] = self._render_error
        return self._foreign.translate(scope, body)

    def _is_foreign(self, body: bytes | bytearray) -> bool:
        if not any(name in body for name in self._quoted):  # the usual case costs no second parse
            return False
        if b'"inputs"' not in body:  # every body of ours has this field
            return True
        if json_items.exceeds(body, self._foreign.operation.body.max_items):
            raise bodies.too_many_items(BodyModel.max_items)  # either endpoint refuses it
        try:
            document = from_json(body, cache_strings="keys")
        except ValueError:
            return False
        return isinstance(document, dict) and not self._foreign.operation.fields.isdisjoint(document)


def share(
    runtime: Runtime, endpoints: Mapping[str, ModelEndpoint], spoken: Mapping[str, Dialect]
) -> dict[str, ModelEndpoint]:
    """Returns the endpoints of the tasks by path, so that they answer the dialects that use these paths, too."""
    shared = dict(endpoints)
    for name, dialect in spoken.items():
        for operation in dialect.OPERATIONS:
            if operation.fields and operation.path in shared:
                foreign = DialectEndpoint(runtime, name, operation)
                shared[operation.path] = SharedEndpoint(shared[operation.path], foreign, dialect.render_error)
    return shared


def routes(runtime: Runtime, name: str, dialect: Dialect) -> Iterator[Route]:
    """Returns the entries of a dialect in the route table, except the paths that it shares with tasks."""
    for operation in dialect.OPERATIONS:
        if not operation.fields:
            yield Route(operation.path, DialectEndpoint(runtime, name, operation), dialect.render_error)
    for page in dialect.PAGES:
        yield Route(page.path, None, dialect.render_error, page.public)


def install(app: FastAPI, runtime: Runtime, name: str, dialect: Dialect, table: RouteTable) -> dict[str, Any]:
    """Adds the routes of a dialect to the application. Routes that the application already has stay as they are.

    Args:
        app: the application.
        runtime: the loaded models.
        name: the dialect's name.
        dialect: the dialect.
        table: has the endpoints of the operations.

    Returns the schemas that the descriptions of the routes refer to, for the OpenAPI document.
    """
    bodies, definitions = _schemas(name, dialect)
    present = {(method, path) for path, methods in _methods(app) for method in methods}
    for operation in dialect.OPERATIONS:
        match = table.match(operation.path)
        if match is None or ("POST", operation.path) in present:
            continue
        app.add_api_route(
            operation.path,
            match.route.endpoint,  # type: ignore[arg-type]  # it is not None
            methods=["POST"],
            summary=operation.summary,
            tags=[name],
            operation_id=f"{name}:{operation.path}",
            openapi_extra={"requestBody": {"required": True, "content": _json(bodies[operation.path, "validation"])}},
            responses={
                200: {"description": "The response.", "content": _json(bodies[operation.path, "serialization"])}
            },
        )
    for page in dialect.PAGES:
        if (page.method, page.path) not in present:
            app.add_api_route(
                page.path,
                _page_endpoint(runtime, page),
                methods=[page.method],
                summary=page.summary,
                tags=[name],
                operation_id=f"{name}:{page.method}:{page.path}",
            )
    return definitions


def _schemas(name: str, dialect: Dialect) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Returns the schemas of each path's request and response, and those that they refer to, with prefixed names."""
    models: list[Any] = []
    for one in dialect.OPERATIONS:
        models += [
            (one.path, "validation", TypeAdapter(one.body)),
            (one.path, "serialization", TypeAdapter(one.answer)),
        ]
    found, document = TypeAdapter.json_schemas(models, ref_template=f"{SCHEMAS}{name}.{{model}}")
    return dict(found), {f"{name}.{model}": schema for model, schema in document.get("$defs", {}).items()}


def _methods(app: FastAPI) -> Iterator[tuple[str, set[str]]]:
    for route in app.routes:
        if isinstance(route, StarletteRoute):
            yield route.path, route.methods or set()


def _page_endpoint(runtime: Runtime, page: Page) -> Any:
    async def respond(request: Request) -> Response:
        return page.respond(runtime, request.path_params)

    return respond


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
