"""Classification as SGLang (`/v1/classify`) and vLLM (`/classify`) serve it: `input` in, `probs` out."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from swiftlet_serve.http.dialect_parts import openai_format
from swiftlet_serve.http.dialect_parts.dialect import Operation, translation
from swiftlet_serve.http.dialect_parts.openai_format import LIMIT, TRUNCATION, TruncatingRequest, Usage
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import Texts
from swiftlet_serve.telemetry.request_record import RequestRecord

WORDING: Final = Wording(renamed(LIMIT | {"/inputs": "/input", "/parameters": ""}), TRUNCATION)


class ClassifyRequest(TruncatingRequest):
    """A classification request of SGLang and vLLM."""

    model: str | None = None
    input: str | Texts
    use_activation: bool | None = None


class Classification(BaseModel):
    """The probabilities of the labels of one text, in the order of the model's labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(BaseModel):
    """A classification response of SGLang and vLLM."""

    id: str
    object: str
    created: int
    model: str
    data: list[Classification]
    usage: Usage


def classify(runtime: Runtime, request: Request) -> Translation:
    """Translates a classification request."""
    body = bodies.parse(ClassifyRequest, request.body)
    pipeline = runtime.catalog.pipeline("classify", body.model, request.version)
    function = "none" if body.use_activation is False else None
    parameters = {"truncation": body.truncates(default=True), "function_to_apply": function}
    fields = {"inputs": body.input, "parameters": parameters}
    return translation(pipeline, fields, partial(_render, pipeline), WORDING, cut=body.cut())


def _render(pipeline: Pipeline, answer: Any, record: RequestRecord) -> TaskResponse:
    """Returns a `ClassifyResponse`. It is not made of models, since that would take as long as all the rest."""
    labels = pipeline.model.manifest.labels
    response = {
        "id": f"classify-{record.id}",
        "object": "list",
        "created": int(time.time()),
        "model": record.model,
        "data": [_classification(index, ranked, labels) for index, ranked in enumerate(answer)],
        "usage": {"prompt_tokens": record.tokens, "total_tokens": record.tokens},
    }
    return TaskResponse.of(response)


def _classification(index: int, ranked: list[dict[str, Any]], labels: tuple[str, ...]) -> dict[str, Any]:
    scores = {entry["label"]: entry["score"] for entry in ranked}
    probabilities = [scores[label] for label in labels]
    return {"index": index, "label": ranked[0]["label"], "probs": probabilities, "num_classes": len(labels)}


render_error = openai_format.render_error

OPERATIONS: Final = (
    Operation("/v1/classify", "Classification, as SGLang", classify, ClassifyRequest, ClassifyResponse),
    Operation(
        "/classify", "Classification, as vLLM", classify, ClassifyRequest, ClassifyResponse, fields=frozenset({"input"})
    ),
)
