"""Ranking as Cohere (`/v1/rerank`, `/v2/rerank`) and vLLM (`/rerank`) serve it, and Cohere's embeddings.

Vectors come in each of the `embedding_types` that a request names. `input_type` chooses among the model's prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_serve.errors import SwiftletError, invalid_value
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation, translation
from swiftlet_serve.http.dialect_parts.openai_format import LIMIT, SIDES, TruncatingRequest
from swiftlet_serve.http.dialect_parts.prompts import prompt_name
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed, sentence
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks import _vectors
from swiftlet_serve.tasks._requests import MAX_INPUTS, Cut, empty_input
from swiftlet_serve.tasks.rerank import MAX_TEXTS
from swiftlet_serve.telemetry.request_record import RequestRecord

WORDING: Final = Wording(
    renamed(
        LIMIT | {"/inputs/texts": "/documents", "/inputs": "", "/parameters/truncation": "/truncate", "/parameters": ""}
    ),
    "set truncate to END",
)
EMBED_WORDING: Final = Wording(
    renamed(
        {
            "/inputs": "/texts",
            "/parameters/truncation": "/truncate",
            "/parameters/dimensions": "/output_dimension",
            "/parameters/encoding_format": "/embedding_types",
            "/parameters/tokens": "/max_tokens",
            "/parameters/output": "/model",  # its fault: clients choose no output
        }
    ),
    WORDING.truncation,
)

MAX_NAMED: Final = 10  # texts in a warning
Truncate = Literal["NONE", "START", "END"]


class Document(ForeignBody):
    """A document. Other fields than its text are not read."""

    text: str


class RerankRequest(TruncatingRequest):
    """A ranking request of Cohere and vLLM."""

    max_items: ClassVar[int] = 16_384  # the documents may have fields that are not read

    model: str | None = None
    query: str
    documents: list[str | Document] = Field(min_length=1, max_length=MAX_TEXTS)
    top_n: int | None = Field(default=None, ge=0)
    return_documents: bool = False
    raw_scores: bool = False
    use_activation: bool | None = None
    instruction: str | None = None
    max_tokens_per_doc: int | None = Field(default=None, ge=0)
    max_tokens_per_query: int | None = Field(default=None, ge=0)
    rank_fields: list[str] | None = None

    def truncates(self, *, default: bool) -> bool:
        """Returns whether long texts are cut. Cohere's own field refuses them whatever else is there."""
        return self.truncate != "NONE" and super().truncates(default=default)

    def cut(self) -> Cut:
        """Returns how long texts are cut. 0 tokens of a text are no limit, as for vLLM."""
        whole = super().cut()
        return Cut(whole.tokens, whole.side, self.max_tokens_per_query or None, self.max_tokens_per_doc or None)


class EmbedRequest(ForeignBody):
    """An embedding request of Cohere."""

    model: str | None = None
    texts: list[str] = Field(min_length=1, max_length=MAX_INPUTS)
    input_type: str | None = None
    embedding_types: list[_vectors.Format] | None = Field(default=None, min_length=1, max_length=8)
    output_dimension: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    truncate: Truncate | None = None

    def cut(self) -> Cut:
        """Returns how long texts are cut."""
        return Cut(self.max_tokens, SIDES.get(self.truncate))


class EmbedResponse(BaseModel):
    """An embedding response of Cohere. In version 1, a request without `embedding_types` gets a list of vectors."""

    id: str
    response_type: str
    embeddings: dict[str, list[list[float] | str]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any]


class Result(BaseModel):
    """A document, named by its position in the request, and its score."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RerankResponse(BaseModel):
    """A ranking response of Cohere, with the `model` and `usage` of vLLM's."""

    id: str
    results: list[Result]
    meta: dict[str, Any]
    model: str
    usage: dict[str, int]


def rerank(runtime: Runtime, request: Request, *, version: str) -> Translation:
    """Translates a ranking request."""
    body = bodies.parse(RerankRequest, request.body)
    pipeline = runtime.catalog.pipeline("rerank", body.model, request.version)
    if body.rank_fields not in (None, ["text"]):
        raise invalid_value("/rank_fields", "unsupported", "Only the text of a document is ranked. Omit rank_fields.")
    documents = [document if isinstance(document, str) else document.text for document in body.documents]
    chosen = [i for i, text in enumerate(documents) if text.strip()]
    if not chosen:
        raise empty_input("/documents/0")
    texts = [documents[i] for i in chosen]
    parameters: dict[str, Any] = {
        "return_documents": body.return_documents,
        "truncation": body.truncates(default=True),
        "raw_scores": body.raw_scores or body.use_activation is False,
    }
    prompt = pipeline.model.manifest.reading.pair_prompt
    if body.instruction and prompt is not None and "instruction" in prompt.before[1::2]:  # others read none, as in vLLM
        parameters["instruction"] = body.instruction
    if body.top_n:  # 0 means all, as in vLLM
        parameters["top_n"] = min(body.top_n, max(1, len(texts)))  # Cohere's clients may ask for more than there are
    fields = {"inputs": {"query": body.query, "texts": texts}, "parameters": parameters}
    blank = sorted(set(range(len(documents))).difference(chosen))
    wording = WORDING._replace(place=partial(_place, chosen))
    cut = body.cut()
    render = partial(_render, pipeline, version, wording, chosen, blank, cut)
    return translation(pipeline, fields, render, wording, cut=cut)


def embed(runtime: Runtime, request: Request, *, version: str) -> Translation:
    """Translates an embedding request. Several types are made of one answer, which has all digits."""
    body = bodies.parse(EmbedRequest, request.body)
    pipeline = runtime.catalog.pipeline("embed", body.model, request.version)
    manifest = pipeline.model.manifest
    cut = body.cut()
    types: list[_vectors.Format] = list(dict.fromkeys(body.embedding_types or ["float"]))
    for kind in types:
        if error := _vectors.refusal(kind, body.output_dimension or manifest.width, normalized=True):
            EMBED_WORDING.apply(error)
            raise error
    parameters = {
        "normalize": True,  # as Cohere's vectors are
        "dimensions": body.output_dimension,
        "prompt_name": prompt_name(manifest, body.input_type),
        "output": "dense",
        "truncation": body.truncate != "NONE",
        "encoding_format": types[0] if len(types) == 1 else "base64",
    }
    by_type = body.embedding_types is not None or version != "1"

    def render(answer: Any, record: RequestRecord) -> TaskResponse:
        embeddings: Any = {types[0]: answer}
        if len(types) > 1:
            vectors = np.array([_vectors.read_base64(text) for text in answer])
            embeddings = {kind: _vectors.write(vectors, kind) for kind in types}
        return TaskResponse.of(
            {
                "id": record.id,
                "response_type": f"embeddings_{'by_type' if by_type else 'floats'}",
                "embeddings": embeddings if by_type else answer,
                "texts": body.texts,
                "meta": _meta(pipeline, version, record, EMBED_WORDING, cut, []),
            }
        )

    fields = {"inputs": body.texts, "parameters": parameters}
    return translation(pipeline, fields, render, EMBED_WORDING, cut=cut)


def _place(chosen: Sequence[int], pointer: str) -> str:
    """Returns the place of a part of our request, which has only the chosen documents."""
    place = WORDING.place(pointer)
    documents, _, number = place.rpartition("/")
    return f"{documents}/{chosen[int(number)]}" if documents == "/documents" else place


def _render(
    pipeline: Pipeline,
    version: str,
    places: Wording,
    chosen: Sequence[int],
    blank: Sequence[int],
    how: Cut,
    ranked: list[dict[str, Any]],
    record: RequestRecord,
) -> TaskResponse:
    """Returns the response. The ranked texts are the `chosen` documents, and a warning names the `blank` ones."""
    results = [
        {"index": chosen[result["index"]], "relevance_score": result["score"]} | _document(result) for result in ranked
    ]
    warnings = [f"Blank and not ranked: {_named([f'/documents/{i}' for i in blank])}."] if blank else []
    meta = _meta(pipeline, version, record, places, how, warnings)
    return TaskResponse.of(
        {
            "id": record.id,
            "results": results,
            "meta": meta,
            "model": pipeline.model.manifest.name,
            "usage": {"total_tokens": record.tokens},
        }
    )


def _meta(
    pipeline: Pipeline, version: str, record: RequestRecord, places: Wording, how: Cut, warnings: Sequence[str]
) -> dict[str, Any]:
    """Returns the part of a response about the request, with a further warning if texts were cut."""
    meta: dict[str, Any] = {"api_version": {"version": version}, "tokens": {"input_tokens": record.tokens}}
    if record.truncated:
        cut = _named(list(map(places.place, record.truncated)))
        limits = _limits(how, pipeline.model.manifest.max_tokens)
        warnings = [*warnings, f"Truncated to {limits}: {cut}. To refuse, set truncate to NONE."]
    return meta | ({"warnings": warnings} if warnings else {})


def _limits(how: Cut, max_tokens: int) -> str:
    """Returns the limits that may have cut a text, in words. A limit above the model's cuts none."""
    of_model, own = f"the model's {max_tokens} tokens", "the limits of the request"
    if how.most(max_tokens) < max_tokens:
        return own
    parts = [limit for limit in (how.query_tokens, how.document_tokens) if limit is not None and limit < max_tokens]
    return f"{own} and {of_model}" if parts else of_model


def _named(places: Sequence[str]) -> str:
    """Returns the first of some places in words."""
    return ", ".join(places[:MAX_NAMED]) + (", and others" if len(places) > MAX_NAMED else "")


def _document(ranked: dict[str, Any]) -> dict[str, Any]:
    return {"document": {"text": ranked["text"]}} if "text" in ranked else {}


def render_error(error: SwiftletError, request_id: str) -> Response:
    """Returns an error in Cohere's form."""
    body = {"id": request_id, "message": sentence(error), "code": error.code}
    return JSONResponse(body, error.status, problem_details.headers(error))


OPERATIONS: Final = (
    Operation("/v1/embed", "Embeddings", partial(embed, version="1"), EmbedRequest, EmbedResponse),
    Operation("/v2/embed", "Embeddings", partial(embed, version="2"), EmbedRequest, EmbedResponse),
    Operation("/v1/rerank", "Ranked texts", partial(rerank, version="1"), RerankRequest, RerankResponse),
    Operation("/v2/rerank", "Ranked texts", partial(rerank, version="2"), RerankRequest, RerankResponse),
    Operation(
        "/rerank",
        "Ranked texts, as vLLM",
        partial(rerank, version="2"),
        RerankRequest,
        RerankResponse,
        fields=frozenset({"documents"}),
    ),
)
