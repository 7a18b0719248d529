"""The descriptions of the routes in /openapi.json, made from the tasks' own request and response models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, TypeAdapter
from starlette.responses import PlainTextResponse

from swiftlet_serve import tasks
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http.endpoints.batch_endpoint import BatchRequest, BatchResponse
from swiftlet_serve.http.endpoints.models import ModelInfo
from swiftlet_serve.http.endpoints.status import Status
from swiftlet_serve.http.problem_details import MEDIA_TYPE, Problem
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import Details

SCHEMAS: Final = "#/components/schemas/"

PARAMETERS: Final = [
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "description": "Timeout of the request in milliseconds. After it, the request fails with status 504. "
        "The server sets the default.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 600_000},
    },
    {
        "name": "X-Request-Priority",
        "in": "header",
        "description": "Priority of the request: interactive if a user waits for the response, else bulk. Interactive "
        "requests run first, and bulk requests are refused first.",
        "schema": {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"},
    },
    {
        "name": "X-Model-Version",
        "in": "header",
        "description": "Version of the model that must answer, of those in the model repository.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    },
    {
        "name": "X-Routing-Key",
        "in": "header",
        "description": "Requests with an equal key get the same version, if the versions of a model share its "
        "requests. The key is in no log.",
        "schema": {"type": "string"},
    },
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "ID of the request, which the response and the logs repeat. At most 128 letters, digits and "
        ". _ : = -. The server replaces any other value by a new ID.",
        "schema": {"type": "string"},
    },
]


class Live(BaseModel):
    """The process is alive."""

    live: Annotated[bool, Field(description="Always true.")]


class Ready(BaseModel):
    """The service is ready for requests."""

    ready: Annotated[bool, Field(description="Always true. A service that is not ready responds with status 503.")]


def task(name: str) -> dict[str, Any]:
    """Returns the description of a task's route, as arguments of FastAPI's routes."""
    served = tasks.load(name).TASK
    body = {"schema": {"$ref": SCHEMAS + served.Request.__name__}}
    return {
        "name": name,
        "operation_id": name.replace("-", "_"),
        "summary": _summary(served.Request),
        "openapi_extra": {
            "parameters": PARAMETERS,
            "requestBody": {"required": True, "content": {"application/json": body}},
        },
        "responses": {
            200: {"description": "The response.", "content": {"application/json": {"schema": _response(served)}}},
            **_failures(),
        },
    }


def batch() -> dict[str, Any]:
    """Returns the description of the route of batches."""
    body, answer = ({"application/json": {"schema": {"$ref": SCHEMAS + model.__name__}}} for model in BATCH_MODELS)
    return {
        "name": "batch",
        "operation_id": "batch",
        "summary": _summary(BatchRequest),
        "openapi_extra": {"parameters": PARAMETERS, "requestBody": {"required": True, "content": body}},
        "responses": {200: {"description": "The response.", "content": answer}, **_failures()},
    }


def _get(name: str, summary: str, answer: dict[str, Any], unavailable: bool = False) -> dict[str, Any]:
    responses: dict[int, Any] = {200: {"description": summary, "content": {"application/json": {"schema": answer}}}}
    return {
        "name": name,
        "operation_id": name,
        "summary": summary,
        "responses": responses | ({503: _failures()[503]} if unavailable else {}),
    }


def _failures() -> dict[int, Any]:
    """Returns a response for each status of the classes of `SwiftletError`."""
    descriptions: dict[int, list[str]] = {}
    for kind in SwiftletError.__subclasses__():
        descriptions.setdefault(kind.status, []).append(f"{kind.title}: {', '.join(sorted(kind.codes))}.")
    return {
        status: {
            "description": " ".join(parts),
            "content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMAS + Problem.__name__}}},
        }
        for status, parts in descriptions.items()
    }


def _summary(model: type[BaseModel]) -> str:
    return str(model.__doc__).strip().splitlines()[0]


def _response(served: Any) -> dict[str, Any]:
    schema = TypeAdapter(served.Response).json_schema(mode="serialization", ref_template=SCHEMAS + "{model}")
    del schema["$defs"]  # `install` adds them to the components
    detailed = {
        "type": "object",
        "description": "The response to a request with details.",
        "properties": {"answer": schema, "details": {"$ref": SCHEMAS + Details.__name__}},
        "required": ["answer", "details"],
    }
    return {"anyOf": [schema, detailed]}


def metrics() -> dict[str, Any]:
    """Returns the description of the route of the metrics."""
    return {
        "name": "metrics",
        "operation_id": "metrics",
        "summary": "Metrics for Prometheus",
        "response_class": PlainTextResponse,
        "responses": {503: _failures()[503]},
    }


BATCH_MODELS: Final = (BatchRequest, BatchResponse)
models: Final = partial(
    _get, "models", "Served models", {"type": "array", "items": {"$ref": SCHEMAS + ModelInfo.__name__}}
)
live: Final = partial(_get, "live", "Liveness check", {"$ref": SCHEMAS + Live.__name__})
status: Final = partial(_get, "status", "Status of the server", {"$ref": SCHEMAS + Status.__name__})
ready: Final = partial(_get, "ready", "Readiness check", {"$ref": SCHEMAS + Ready.__name__}, unavailable=True)


def schemas(runtime: Runtime, others: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Returns the schemas that the descriptions of the routes refer to, by their names.

    Args:
        runtime: the loaded models.
        others: the schemas of routes that belong neither to tasks nor to the server.
    """
    served = [tasks.load(name).TASK for name in runtime.task_names]
    shown: list[Any] = [
        *(task.Request for task in served),
        Details,
        *BATCH_MODELS,
        Problem,
        ModelInfo,
        Live,
        Ready,
        Status,
    ]
    answers: list[Any] = [*(task.Response for task in served)]
    _, document = TypeAdapter.json_schemas(
        [
            *((model.__name__, "validation", TypeAdapter(model)) for model in shown),
            *((number, "serialization", TypeAdapter(answer)) for number, answer in enumerate(answers)),
        ],
        ref_template=SCHEMAS + "{model}",
    )
    found = dict(document["$defs"])
    for definitions in others:
        found.update(definitions)
    return found
