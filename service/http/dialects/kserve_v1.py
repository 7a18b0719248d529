"""KServe's first protocol, which its client speaks unless told otherwise.

`instances` are the inputs of our requests, and `predictions` our answers to them, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_serve.service.errors import SwiftletError
from swiftlet_serve.service.http import bodies, problem_details
from swiftlet_serve.service.http.dialects import Call, Foreign, Operation, Page
from swiftlet_serve.service.http.task_endpoint import TaskResponse, Translation
from swiftlet_serve.service.runtime import Runtime


class PredictRequest(Foreign):
    """A prediction request of KServe."""

    instances: list[Any] = Field(min_length=1, max_length=64)
    parameters: dict[str, Any] | None = None


class PredictResponse(BaseModel):
    """A prediction response of KServe."""

    predictions: list[Any]


def predict(runtime: Runtime, call: Call) -> Translation:
    """Translates a prediction request."""
    pipeline = runtime.find(call.parameters["model"])
    task, given = pipeline.model.task, bodies.parse(PredictRequest, call.body)
    only = len(given.instances) == 1
    fields: dict[str, Any] = {"inputs": given.instances[0] if only else given.instances}
    request = bodies.validate(task.Request, fields | ({"parameters": given.parameters} if given.parameters else {}))

    def render(answer: Any) -> TaskResponse:
        return TaskResponse.of({"predictions": [task.single(answer)] if only else answer})

    return Translation(pipeline, request, render)


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error of the protocol. KServe's client wants exactly this media type."""
    return JSONResponse({"error": error.detail, "code": error.code}, error.status, problem_details.headers(error))


def _list(runtime: Runtime, _: Mapping[str, str]) -> Response:
    return JSONResponse({"models": list(runtime.pipelines)})


def _ready(runtime: Runtime, parameters: Mapping[str, str]) -> Response:
    name = runtime.find(parameters["model"]).model.manifest.name
    runtime.check_ready()
    return JSONResponse({"name": name, "ready": True})


OPERATIONS: Final = (Operation("/v1/models/{model}:predict", "Prediction", predict, PredictRequest, PredictResponse),)
PAGES: Final = (
    Page("/v1/models", "Names of the served models", _list),
    Page("/v1/models/{model}", "Readiness of a model", _ready),
)
