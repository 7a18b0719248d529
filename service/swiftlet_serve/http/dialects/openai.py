"""OpenAI's embeddings and list of models.

Token ids instead of texts are ids of the model's vocabulary, and are read exactly as they are. The special
tokens of the model are put around them, unless they are there. Clients that send ids of OpenAI's vocabularies must be
told to send texts.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

from pydantic import BaseModel
from pydantic_core import to_json

from swiftlet_serve.http.dialect_parts import model_pages, openai_format
from swiftlet_serve.http.dialect_parts.dialect import Operation, translation
from swiftlet_serve.http.dialect_parts.openai_format import LIMIT, TRUNCATION, TruncatingRequest, Usage
from swiftlet_serve.http.dialect_parts.prompts import prompt_name
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation, dump
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._vectors import Format
from swiftlet_serve.tasks.embed import MAX_ITEMS, Inputs, TokenIdsRequest, has_ids
from swiftlet_serve.telemetry.request_record import RequestRecord

NAMES: Final = LIMIT | {"/inputs": "/input", "/parameters/output": "/model", "/parameters": ""}
WORDING: Final = Wording(renamed(NAMES), TRUNCATION)
OF_VOYAGE: Final = Wording(renamed({"/parameters/dimensions": "/output_dimension"} | NAMES), TRUNCATION)


class EmbeddingsRequest(TruncatingRequest):
    """An embeddings request of OpenAI, with fields of vLLM, Voyage, NVIDIA (`input_type`) and Jina (`task`)."""

    max_items: ClassVar[int] = MAX_ITEMS

    input: Inputs
    model: str
    encoding_format: Format = "float"
    dimensions: int | None = None
    output_dimension: int | None = None
    input_type: str | None = None
    task: str | None = None
    use_activation: bool | None = None


class Embedding(BaseModel):
    """A vector: a list of numbers, or little-endian 32-bit floats in Base64. Other formats are Swiftlet's addition."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    """An embeddings response of OpenAI."""

    object: str
    data: list[Embedding]
    model: str
    usage: Usage


def embeddings(runtime: Runtime, request: Request) -> Translation:
    """Translates an embeddings request."""
    body = bodies.parse(EmbeddingsRequest, request.body)
    pipeline = runtime.catalog.pipeline("embed", body.model, request.version)
    parameters = {
        "encoding_format": body.encoding_format,
        "normalize": body.encoding_format.endswith("int8") or body.use_activation,  # int8 needs it
        "dimensions": body.output_dimension if body.dimensions is None else body.dimensions,
        "prompt_name": prompt_name(pipeline.model.manifest, body.input_type or body.task),
        "output": "dense",
        "truncation": body.truncates(default=False),
    }
    fields = {"inputs": body.input, "parameters": parameters}
    model = TokenIdsRequest if has_ids(body.input) else pipeline.model.task.Request
    wording = WORDING if body.output_dimension is None or body.dimensions is not None else OF_VOYAGE
    return translation(pipeline, fields, partial(_render, pipeline), wording, model=model, cut=body.cut())


def _render(pipeline: Pipeline, answer: Any, record: RequestRecord) -> TaskResponse:
    """Returns an `EmbeddingsResponse`. It is not made of models, since that would take as long as all the rest."""
    usage = {"prompt_tokens": record.tokens, "total_tokens": record.tokens}
    tail = to_json({"model": pipeline.model.manifest.name, "usage": usage})
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(answer)]
    return TaskResponse(dump(data, b'{"object":"list","data":', b"," + tail[1:]))


render_error = openai_format.render_error

OPERATIONS: Final = (Operation("/v1/embeddings", "Embeddings", embeddings, EmbeddingsRequest, EmbeddingsResponse),)
PAGES: Final = model_pages.PAGES
