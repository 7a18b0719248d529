"""The routes of a dialect, in the route table and in the application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from swiftlet_serve.service.http.dialects import Call, Dialect, Operation, Page
from swiftlet_serve.service.http.route_table import Route
from swiftlet_serve.service.http.task_endpoint import ModelEndpoint, Translation
from swiftlet_serve.service.runtime import Runtime


class DialectEndpoint(ModelEndpoint):
    """The endpoint of an operation."""

    def __init__(self, runtime: Runtime, operation: Operation) -> None:
        super().__init__(runtime, json_only=operation.json_only)
        self.operation = operation

    def translate(self, scope: Scope, body: bytes | bytearray) -> Translation:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        return self.operation.translate(self.runtime, Call(scope["state"]["match"].parameters, headers, body))


def routes(runtime: Runtime, dialect: Dialect) -> Iterator[Route]:
    """Returns the entries of a dialect in the route table."""
    for operation in dialect.OPERATIONS:
        yield Route(operation.path, DialectEndpoint(runtime, operation), dialect.render_error)
    for page in dialect.PAGES:
        yield Route(page.path, None, dialect.render_error, page.public)


def install(app: FastAPI, runtime: Runtime, name: str, dialect: Dialect, endpoints: Mapping[str, Any]) -> None:
    """Adds the routes of a dialect to the application. `endpoints` are those of its operations, by path."""
    for operation in dialect.OPERATIONS:
        app.add_api_route(
            operation.path,
            endpoints[operation.path],
            methods=["POST"],
            summary=operation.summary,
            tags=[name],
            operation_id=f"{name}:{operation.path}",
            openapi_extra={"requestBody": {"required": True, "content": _json(operation.body, "validation")}},
            responses={200: {"description": "The response.", "content": _json(operation.answer, "serialization")}},
        )
    for page in dialect.PAGES:
        app.add_api_route(
            page.path,
            _page_endpoint(runtime, page),
            methods=[page.method],
            summary=page.summary,
            tags=[name],
            operation_id=f"{name}:{page.method}:{page.path}",
        )


def _page_endpoint(runtime: Runtime, page: Page) -> Any:
    async def respond(request: Request) -> Response:
        return page.respond(runtime, request.path_params)

    return respond


def _json(model: Any, mode: Any) -> dict[str, Any]:
    return {"application/json": {"schema": TypeAdapter(model).json_schema(mode=mode)}}
