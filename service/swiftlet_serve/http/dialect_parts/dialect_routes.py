"""The routes of dialects, with their descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json
from starlette.responses import Response

from swiftlet_serve import tasks
from swiftlet_serve.http.dialect_parts.dialect import Dialect, Operation, Page
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import ModelEndpoint, Translate, Translation
from swiftlet_serve.http.endpoints.openapi import SCHEMAS
from swiftlet_serve.http.gate.request import RenderError, Request, Respond, Route
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.types.body_model import BodyModel


def translation_of(runtime: Runtime, name: str, operation: Operation) -> Translate:
    """Returns the translation of an operation's requests. `name` is the dialect's."""
    runtime.stats.dialects[name, "2xx"] += 0  # a counter begins at 0

    def translate(request: Request) -> Translation:
        request.record.dialect = name
        return operation.translate(runtime, request)

    return translate


def shared_translation(
    own: Translate, body: type[BaseModel], foreign: Translate, operation: Operation, render_error: RenderError
) -> Translate:
    """Returns the translation of a route that a dialect uses, too. The fields of a body tell which one applies.

    Args:
        own: the translation of the task, or of another dialect.
        body: the model of its bodies.
        foreign: the translation of the dialect.
        operation: the operation of the dialect.
        render_error: renders errors of the dialect.
    """
    quoted = [f'"{name}"'.encode() for name in sorted(operation.fields)]
    needed = [f'"{name}"'.encode() for name, field in body.model_fields.items() if field.is_required()]

    def is_foreign(body: bytes | bytearray) -> bool:
        if not any(name in body for name in quoted):  # the usual case costs no second parse
            return False
        if not all(name in body for name in needed):
            return True
        if bodies.has_more_items(body, operation.body.max_items):
            raise bodies.too_many_items(BodyModel.max_items)  # either translation refuses it
        try:
            document = from_json(body, cache_strings="keys")
        except ValueError:
            return False
        return isinstance(document, dict) and not operation.fields.isdisjoint(document)

    def translate(request: Request) -> Translation:
        if not is_foreign(request.body):
            return own(request)
        request.render_error = render_error
        return foreign(request)

    return translate


def with_dialects(
    runtime: Runtime, path: str, own: Translate, body: type[BaseModel], dialects: Mapping[str, Dialect]
) -> Translate:
    """Returns the translation of a route, also for the bodies of dialects that share it.

    Args:
        runtime: the loaded models.
        path: the path of the route.
        own: the translation of the other bodies.
        body: the model of these.
        dialects: the served dialects by name.
    """
    for name, dialect in dialects.items():
        for operation in dialect.OPERATIONS:
            if operation.fields and operation.path == path:
                foreign = translation_of(runtime, name, operation)
                own = shared_translation(own, body, foreign, operation, dialect.render_error)
    return own


def routes(
    runtime: Runtime, name: str, dialects: Mapping[str, Dialect], described: Mapping[Any, Any]
) -> Iterator[Route]:
    """Returns the routes of a dialect, except those that it shares with tasks or with a dialect whose route it is.

    Args:
        runtime: the loaded models.
        name: the name of the dialect.
        dialects: the served dialects by name.
        described: the schemas of the dialect, from `schemas`.
    """
    dialect = dialects[name]
    others = {f"/{task}" for task in tasks.names()}
    others |= {operation.path for one in dialects.values() for operation in one.OPERATIONS if not operation.fields}
    for operation in dialect.OPERATIONS:
        if operation.fields and operation.path in others:
            continue
        translate = translation_of(runtime, name, operation)
        if not operation.fields:
            translate = with_dialects(runtime, operation.path, translate, operation.body, dialects)
        yield Route(
            "POST",
            operation.path,
            ModelEndpoint(runtime, translate).respond,
            runs_model=True,
            reads_body=True,
            json_only=operation.json_only,
            render_error=dialect.render_error,
            description={
                "summary": operation.summary,
                "tags": [name],
                "operation_id": f"{name}:{operation.path}",
                "openapi_extra": {
                    "requestBody": {"required": True, "content": _json(described[operation.path, "validation"])}
                },
                "responses": {
                    200: {
                        "description": "The response.",
                        "content": _json(described[operation.path, "serialization"]),
                    }
                },
            },
        )
    for page in dialect.PAGES:
        yield Route(
            page.method,
            page.path,
            _respond(runtime, page),
            public=page.public,
            render_error=page.render_error or dialect.render_error,
            description={
                "summary": page.summary,
                "tags": [name],
                "operation_id": f"{name}:{page.method}:{page.path}",
            },
        )


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
