"""The routes of dialects, with their descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json
from starlette.responses import Response

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
    own: Translate, foreign: Translate, operation: Operation, render_error: RenderError
) -> Translate:
    """Returns the translation of a task's route that a dialect uses, too. The fields of a body tell which one applies.

    Args:
        own: the translation of the task.
        foreign: the translation of the dialect.
        operation: the operation of the dialect.
        render_error: renders errors of the dialect.
    """
    quoted = [f'"{name}"'.encode() for name in sorted(operation.fields)]

    def is_foreign(body: bytes | bytearray) -> bool:
        if not any(name in body for name in quoted):  # the usual case costs no second parse
            return False
        if b'"inputs"' not in body:  # every body of ours has this field
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
    runtime: Runtime, own: Mapping[str, Translate], dialects: Mapping[str, Dialect]
) -> dict[str, Translate]:
    """Returns the translations of the tasks by path, for the bodies of dialects that use these paths, too."""
    shared = dict(own)
    for name, dialect in dialects.items():
        for operation in dialect.OPERATIONS:
            if operation.fields and operation.path in shared:
                foreign = translation_of(runtime, name, operation)
                shared[operation.path] = shared_translation(
                    shared[operation.path], foreign, operation, dialect.render_error
                )
    return shared


def routes(runtime: Runtime, name: str, dialect: Dialect, described: Mapping[Any, Any]) -> Iterator[Route]:
    """Returns the routes of a dialect, except those that it shares with tasks. `described` is from `schemas`."""
    for operation in dialect.OPERATIONS:
        if operation.fields:
            continue
        yield Route(
            "POST",
            operation.path,
            ModelEndpoint(runtime, translation_of(runtime, name, operation)).respond,
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
