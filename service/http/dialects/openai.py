"""OpenAI's embeddings and list of models.

Token ids in the place of texts are ids of the model's own vocabulary. Clients that send ids of OpenAI's vocabularies
must be told to send texts.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel

from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service.errors import invalid_value
from swiftlet_serve.service.http import bodies, model_pages, openai_format
from swiftlet_serve.service.http.dialect import Call, Operation, translation
from swiftlet_serve.service.http.openai_format import TRUNCATION, TruncatingRequest, Usage
from swiftlet_serve.service.http.task_endpoint import TaskResponse, Translation
from swiftlet_serve.service.http.wording import Wording, renamed
from swiftlet_serve.service.pipeline import Pipeline
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.telemetry.request_record import RequestRecord

WORDING: Final = Wording(renamed({"/inputs": "/input", "/parameters": ""}), TRUNCATION)


class EmbeddingsRequest(TruncatingRequest):
    """An embeddings request of OpenAI."""

    max_items: ClassVar[int] = 1 << 17  # token ids

    input: str | list[str] | list[int] | list[list[int]]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Embedding(BaseModel):
    """A vector: a list of numbers, or little-endian 32-bit floats in Base64."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    """An embeddings response of OpenAI."""

    object: str
    data: list[Embedding]
    model: str
    usage: Usage


def embeddings(runtime: Runtime, call: Call) -> Translation:
    """Translates an embeddings request."""
    given = bodies.parse(EmbeddingsRequest, call.body)
    pipeline = runtime.catalog.pipeline("embed", given.model, call.route)
    parameters = {
        "encoding_format": given.encoding_format,
        "dimensions": given.dimensions,
        "truncation": given.truncates(pipeline.model.manifest.max_tokens, default=False),
    }
    fields = {"inputs": _texts(pipeline, given.input), "parameters": parameters}
    return translation(pipeline, fields, partial(_render, pipeline), WORDING)


def _texts(pipeline: Pipeline, given: Any) -> str | list[str]:
    """Returns the texts of a request.

    Raises:
        Unprocessable: an id is not in the model's vocabulary.
    """
    if isinstance(given, str) or not given or isinstance(given[0], str):
        return given  # type: ignore[no-any-return]
    rows = [given] if isinstance(given[0], int) else given
    task: Any = pipeline.model.task
    tokenizer: Tokenizer = task.tokenizer
    if any(not 0 <= token < tokenizer.vocab_size for row in rows for token in row):
        detail = "A token id is not in the model's vocabulary. Send texts, or ids of this model's own tokenizer."
        raise invalid_value("/input", "unknown_token", detail)
    texts: list[str] = tokenizer.decode(rows, skip_specials=True)
    return texts


def _render(pipeline: Pipeline, answer: Any, record: RequestRecord) -> TaskResponse:
    response = EmbeddingsResponse(
        object="list",
        data=[Embedding(object="embedding", index=i, embedding=vector) for i, vector in enumerate(answer)],
        model=pipeline.model.manifest.name,
        usage=Usage.of(record),
    )
    return TaskResponse.of(response)


render_error = openai_format.render_error

OPERATIONS: Final = (Operation("/v1/embeddings", "Embeddings", embeddings, EmbeddingsRequest, EmbeddingsResponse),)
PAGES: Final = model_pages.PAGES
