"""Predictions for a list of instances, as KServe's first protocol and the hosts of models ask for them.

Instances are the inputs of our requests, and predictions our answers to them, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts import tensor_inference
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, translation
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation, dump
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed, sentence
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.tasks._requests import MAX_INPUTS
from swiftlet_serve.telemetry.request_record import RequestRecord


class PredictRequest(ForeignBody):
    """A prediction request."""

    instances: list[Any] = Field(min_length=1, max_length=MAX_INPUTS)
    parameters: dict[str, Any] | None = None


class PredictResponse(BaseModel):
    """A prediction response."""

    predictions: list[Any]


def predict(pipeline: Pipeline, request: Request) -> Translation:
    """Translates a prediction request to a model.

    Raises:
        SwiftletError: the body is invalid.
    """
    body = bodies.parse(PredictRequest, request.body)
    parameters = {"parameters": body.parameters} if body.parameters else {}

    def render(answers: list[Any], _: RequestRecord) -> TaskResponse:
        return TaskResponse(dump(answers, b'{"predictions":', b"}"))

    return translate(pipeline, body.instances, parameters, "/instances", render)


def translate(
    pipeline: Pipeline,
    instances: Sequence[Any],
    others: Mapping[str, Any],
    at: str,
    render: Callable[[list[Any], RequestRecord], TaskResponse],
) -> Translation:
    """Returns a translation with a request for the answers to some inputs, which the response holds as a whole.

    Args:
        pipeline: the pipeline of the model.
        instances: the inputs, one or more.
        others: the other fields of the task's request.
        at: the JSON Pointer of the inputs in the client's body, for errors.
        render: returns the response, given one answer for each input and the request's record.

    Raises:
        Unprocessable: the fields do not fit the task.
    """
    task, only = pipeline.model.task, len(instances) == 1
    inputs = {"inputs": instances[0] if only else list(instances)}
    wording = Wording(renamed({"/inputs": f"{at}/0" if only else at}), tensor_inference.TRUNCATION)

    def of_answer(answer: Any, record: RequestRecord) -> TaskResponse:
        return render([task.single(answer)] if only else answer, record)

    return translation(pipeline, inputs | dict(others), of_answer, wording)._replace(is_whole=True)


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error of KServe's protocols, whose client wants exactly this media type."""
    return JSONResponse({"error": sentence(error), "code": error.code}, error.status, problem_details.headers(error))
