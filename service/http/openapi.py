"""What /openapi.json says of the routes. The tasks' own models are its source; this only puts them in place."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Any, Final

from fastapi import FastAPI
from pydantic import BaseModel, Field, TypeAdapter
from starlette.responses import PlainTextResponse

from swiftlet_serve.service.errors import SwiftletError
from swiftlet_serve.service.http.problem_details import MEDIA_TYPE, Problem
from swiftlet_serve.service.http.status import Status
from swiftlet_serve.service.pipeline import Pipeline
from swiftlet_serve.service.runtime import Runtime

SCHEMAS: Final = "#/components/schemas/"

PARAMETERS: Final = [
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "description": "How long the answer is of use, in milliseconds; after that the request fails with 504.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 600_000},
    },
    {
        "name": "X-Request-Priority",
        "in": "header",
        "description": "Who waits for the answer: a person, or a program that has time. Interactive requests go before "
        "bulk ones, and bulk ones are refused first.",
        "schema": {"type": "string", "enum": ["interactive", "bulk"], "default": "interactive"},
    },
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "An id for this request, which the response and the log will have. One that is not of letters, "
        "digits and ._:=- or has more than 128 of them is replaced by a new one.",
        "schema": {"type": "string"},
    },
]


class ModelInfo(BaseModel):
    """A model that is served."""

    name: Annotated[str, Field(description='What a request\'s "model" names it by.')]
    version: Annotated[str, Field(description="The version of the artifact.")]
    task: Annotated[str, Field(description="The task it serves, which is its route.")]
    default: Annotated[bool, Field(description="Whether it answers this task's requests that name no model.")]
    architecture: Annotated[str, Field(description="The family of its network.")]
    precision: Annotated[str, Field(description="What its weights are: fp32 or int8.")]
    engine: Annotated[str, Field(description="The engine that runs it.")]
    max_tokens: Annotated[int, Field(description="The longest row it reads, special tokens included.")]
    labels: Annotated[list[str], Field(description="What it tells apart, where its task is classify.")]
    mask: Annotated[str | None, Field(description="What stands for a masked word, where its task is fill-mask.")]
    card: Annotated[dict[str, Any], Field(description="Where it comes from, and how well it does.")]


class Live(BaseModel):
    """The process answers."""

    live: Annotated[bool, Field(description="Always true.")]


class Ready(BaseModel):
    """Requests are answered."""

    ready: Annotated[bool, Field(description="Always true; where it would not be, the status is 503.")]


def describe(pipeline: Pipeline, default: bool) -> dict[str, Any]:
    """What GET /models says of one model."""
    manifest = pipeline.model.manifest
    return ModelInfo(
        name=manifest.name,
        version=manifest.version,
        task=manifest.task,
        default=default,
        architecture=manifest.architecture,
        precision=manifest.precision,
        engine=pipeline.model.engine_name,
        max_tokens=manifest.max_tokens,
        labels=list(manifest.labels),
        mask=getattr(pipeline.model.task, "mask", None),
        card=pipeline.model.artifact.card(),
    ).model_dump()


def version() -> str:
    """Swiftlet's own, where it is installed."""
    try:
        return metadata.version("swiftlet-serve")
    except metadata.PackageNotFoundError:
        return "unknown"


def task(runtime: Runtime, name: str) -> dict[str, Any]:
    """What `FastAPI.add_api_route` needs to describe a task's route."""
    served = runtime.tasks[name].model.task
    body = {"schema": {"$ref": SCHEMAS + served.Request.__name__}}
    return {
        "name": name,
        "operation_id": name.replace("-", "_"),
        "summary": _summary(served),
        "openapi_extra": {
            "parameters": PARAMETERS,
            "requestBody": {"required": True, "content": {"application/json": body}},
        },
        "responses": {
            200: {"description": "The answer.", "content": {"application/json": {"schema": _response(served)}}},
            **_failures(),
        },
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
    """A response for each status of the error tree."""
    return {
        kind.status: {
            "description": f"{kind.title}: {', '.join(sorted(kind.codes))}.",
            "content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMAS + Problem.__name__}}},
        }
        for kind in SwiftletError.__subclasses__()
    }


def _summary(served: Any) -> str:
    return str(served.Request.__doc__).strip().splitlines()[0]


def _response(served: Any) -> dict[str, Any]:
    schema = TypeAdapter(served.Response).json_schema(mode="serialization", ref_template=SCHEMAS + "{model}")
    del schema["$defs"]  # `install` puts them where they are referred to
    return schema


MODELS: Final = _get("models", "The models served.", {"type": "array", "items": {"$ref": SCHEMAS + ModelInfo.__name__}})
LIVE: Final = _get("live", "The process answers.", {"$ref": SCHEMAS + Live.__name__})
METRICS: Final[dict[str, Any]] = {
    "name": "metrics",
    "operation_id": "metrics",
    "summary": "How the server does, for Prometheus.",
    "response_class": PlainTextResponse,
    "responses": {503: _failures()[503]},
}
STATUS: Final = _get("status", "How the server does now.", {"$ref": SCHEMAS + Status.__name__})
READY: Final = _get("ready", "Requests are answered.", {"$ref": SCHEMAS + Ready.__name__}, unavailable=True)


def install(app: FastAPI, runtime: Runtime) -> None:
    """Adds the schemas that the routes refer to."""
    served = [pipeline.model.task for pipeline in runtime.tasks.values()]
    shown: list[Any] = [*(task.Request for task in served), Problem, ModelInfo, Live, Ready, Status]
    answers: list[Any] = [*(task.Response for task in served)]
    _, document = TypeAdapter.json_schemas(
        [
            *((model.__name__, "validation", TypeAdapter(model)) for model in shown),
            *((number, "serialization", TypeAdapter(answer)) for number, answer in enumerate(answers)),
        ],
        ref_template=SCHEMAS + "{model}",
    )
    generate = app.openapi

    def build() -> dict[str, Any]:
        schema = generate()
        schema.setdefault("components", {}).setdefault("schemas", {}).update(document["$defs"])
        return schema

    app.openapi = build  # type: ignore[method-assign]  # FastAPI's own way to change the document
