"""The routes of dialects, with their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response

from swiftlet_serve import tasks
from swiftlet_serve.http.dialect_parts.dialect import Dialect, Operation, Page
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import Foreign, ModelEndpoint, Translate, Translation
from swiftlet_serve.http.endpoints.openapi import SCHEMAS
from swiftlet_serve.http.gate.request import Request, Respond, Route
from swiftlet_serve.inference.runtime import Runtime

Schemas = Callable[[], tuple[Mapping[Any, Any], Mapping[str, Any]]]
"""Calls `schemas` for a dialect, once."""


def translation_of(runtime: Runtime, name: str, operation: Operation) -> Translate:
    """Returns the translation of an operation's requests. `name` is the dialect's."""
    runtime.stats.dialects[name, "2xx"] += 0  # a counter begins at 0

    def translate(request: Request) -> Translation:
        request.record.dialect = name
        return operation.translate(runtime, request)

    return translate


def sharing(runtime: Runtime, path: str, body: type[BaseModel], dialects: Mapping[str, Dialect]) -> Sequence[Foreign]:
    """Returns the dialects that share a route.

    Args:
        runtime: the loaded models.
        path: the path of the route.
        body: the model of the route's other bodies.
        dialects: the served dialects by name.
    """
    return [
        Foreign(
            bodies.Marks(operation.fields, operation.body.max_items, body),
            translation_of(runtime, name, operation),
            dialect.render_error,
        )
        for name, dialect in reversed([*dialects.items()])  # the last one counts for a body with the fields of two
        for operation in dialect.OPERATIONS
        if operation.fields and operation.path == path
    ]


def routes(runtime: Runtime, name: str, dialects: Mapping[str, Dialect], schemas: Schemas) -> Iterator[Route]:
    """Returns the routes of a dialect, except those that it shares with tasks or with a dialect whose route it is.

    Args:
        runtime: the loaded models.
        name: the name of the dialect.
        dialects: the served dialects by name.
        schemas: returns the schemas of the dialect.
    """
    dialect = dialects[name]
    others = {f"/{task}" for task in tasks.names()}
    others |= {operation.path for one in dialects.values() for operation in one.OPERATIONS if not operation.fields}
    for operation in dialect.OPERATIONS:
        if operation.fields and operation.path in others:
            continue
        foreign = () if operation.fields else sharing(runtime, operation.path, operation.body, dialects)
        yield Route(
            "POST",
            operation.path,
            ModelEndpoint(runtime, translation_of(runtime, name, operation), foreign, operation.inline_bytes).respond,
            runs_model=True,
            reads_body=True,
            json_only=operation.json_only,
            render_error=dialect.render_error,
            describe=partial(_operation, name, operation, schemas),
        )
    for page in getattr(dialect, "PAGES", ()):
        yield Route(
            page.method,
            page.path,
            _respond(runtime, page),
            public=page.public,
            render_error=page.render_error or dialect.render_error,
            describe=partial(_page, name, page),
        )


def _operation(name: str, operation: Operation, schemas: Schemas) -> dict[str, Any]:
    described, _ = schemas()
    return {
        "summary": operation.summary,
        "tags": [name],
        "operation_id": f"{name}:{operation.path}",
        "openapi_extra": {"requestBody": {"required": True, "content": _json(described[operation.path, "validation"])}},
        "responses": {
            200: {"description": "The response.", "content": _json(described[operation.path, "serialization"])}
        },
    }


def _page(name: str, page: Page) -> dict[str, Any]:
    return {"summary": page.summary, "tags": [name], "operation_id": f"{name}:{page.method}:{page.path}"}


def schemas(name: str, dialect: Dialect) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Returns the schemas of each path's request and response, and those that they refer to, with prefixed names."""
    models: list[Any] = []
    for operation in dialect.OPERATIONS:
        models += [
            (operation.path, "validation", TypeAdapter(operation.body)),
            (operation.path, "serialization", TypeAdapter(operation.answer)),
        ]
    of_paths, document = TypeAdapter.json_schemas(models, ref_template=f"{SCHEMAS}{name}.{{model}}")
    return dict(of_paths), {f"{name}.{model}": schema for model, schema in document.get("$defs", {}).items()}


def _respond(runtime: Runtime, page: Page) -> Respond:
    async def respond(request: Request) -> Response:
        return page.respond(runtime, request.parameters)

    return respond


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
