"""KServe's first protocol, which its client speaks unless told otherwise.

`instances` are the inputs of our requests, and `predictions` our answers to them, in the same order.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts import model_pages, tensor_inference
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation, translation
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation, dump
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed, sentence
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import MAX_INPUTS
from swiftlet_serve.telemetry.request_record import RequestRecord


class PredictRequest(ForeignBody):
    """A prediction request of KServe."""

    instances: list[Any] = Field(min_length=1, max_length=MAX_INPUTS)
    parameters: dict[str, Any] | None = None


class PredictResponse(BaseModel):
    """A prediction response of KServe."""

    predictions: list[Any]


def predict(runtime: Runtime, request: Request) -> Translation:
    """Translates a prediction request."""
    pipeline = runtime.catalog.find(request.parameters["model"], request.version)
    task, body = pipeline.model.task, bodies.parse(PredictRequest, request.body)
    only = len(body.instances) == 1
    fields: dict[str, Any] = {"inputs": body.instances[0] if only else body.instances}
    wording = Wording(renamed({"/inputs": "/instances/0" if only else "/instances"}), tensor_inference.TRUNCATION)

    def render(answer: Any, _: RequestRecord) -> TaskResponse:
        return TaskResponse(b'{"predictions":%b}' % dump([task.single(answer)] if only else answer))

    parameters = {"parameters": body.parameters} if body.parameters else {}
    return translation(pipeline, fields | parameters, render, wording)


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error of the protocol. KServe's client wants exactly this media type."""
    return JSONResponse({"error": sentence(error), "code": error.code}, error.status, problem_details.headers(error))


OPERATIONS: Final = (Operation("/v1/models/{model}:predict", "Prediction", predict, PredictRequest, PredictResponse),)
PAGES: Final = model_pages.PAGES
