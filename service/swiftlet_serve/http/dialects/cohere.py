"""Ranking as Cohere (`/v1/rerank`, `/v2/rerank`) and vLLM (`/rerank`) serve it: documents in, relevance scores out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_serve.errors import SwiftletError, invalid_value
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation, Page, translation
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed, sentence
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import empty_input
from swiftlet_serve.tasks.rerank import MAX_TEXTS
from swiftlet_serve.telemetry.request_record import RequestRecord

WORDING: Final = Wording(
    renamed({"/inputs/texts": "/documents", "/inputs": "", "/parameters/truncation": "/truncate", "/parameters": ""}),
    "set truncate to END",
)


MAX_NAMED: Final = 10  # documents in a warning


class Document(ForeignBody):
    """A document. Other fields than its text are not read."""

    text: str


class RerankRequest(ForeignBody):
    """A ranking request of Cohere."""

    max_items: ClassVar[int] = 16_384  # the documents may have fields that are not read

    model: str | None = None
    query: str
    documents: list[str | Document] = Field(min_length=1, max_length=MAX_TEXTS)
    top_n: int | None = Field(default=None, ge=1)
    return_documents: bool = False
    max_tokens_per_doc: int | None = Field(default=None, ge=1)
    truncate: Literal["NONE", "START", "END"] | None = None
    rank_fields: list[str] | None = None


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
    limit = pipeline.model.manifest.max_tokens
    if body.max_tokens_per_doc is not None and body.max_tokens_per_doc < limit:
        _refuse(
            "/max_tokens_per_doc",
            f"The model truncates documents at {limit} tokens only. Raise max_tokens_per_doc, or omit it.",
        )
    if body.rank_fields not in (None, ["text"]):
        _refuse("/rank_fields", "Only the text of a document is ranked. Omit rank_fields.")
    documents = [document if isinstance(document, str) else document.text for document in body.documents]
    chosen = [i for i, text in enumerate(documents) if text.strip()]
    if not chosen:
        raise empty_input("/documents/0")
    texts = [documents[i] for i in chosen]
    if body.truncate == "START":
        _refuse("/truncate", "Documents can only be truncated at their end. Set truncate to END, or omit it.")
    parameters: dict[str, Any] = {
        "return_documents": body.return_documents,
        "truncation": body.truncate != "NONE",
    }
    if body.top_n is not None:
        parameters["top_n"] = min(body.top_n, max(1, len(texts)))  # Cohere's clients may ask for more than there are
    fields = {"inputs": {"query": body.query, "texts": texts}, "parameters": parameters}
    blank = sorted(set(range(len(documents))).difference(chosen))
    wording = WORDING._replace(place=partial(_place, chosen))
    return translation(pipeline, fields, partial(_render, pipeline, version, wording, chosen, blank), wording)


def _place(chosen: Sequence[int], pointer: str) -> str:
    """Returns the place of a part of our request, which has only the chosen documents."""
    place = WORDING.place(pointer)
    documents, _, number = place.rpartition("/")
    return f"{documents}/{chosen[int(number)]}" if documents == "/documents" else place


def _refuse(pointer: str, detail: str) -> None:
    raise invalid_value(pointer, "unsupported", detail)


def _render(
    pipeline: Pipeline,
    version: str,
    places: Wording,
    chosen: Sequence[int],
    blank: Sequence[int],
    ranked: list[dict[str, Any]],
    record: RequestRecord,
) -> TaskResponse:
    """Returns the response. The ranked texts are the `chosen` documents, and a warning names the `blank` ones."""
    results = [
        {"index": chosen[result["index"]], "relevance_score": result["score"]} | _document(result) for result in ranked
    ]
    meta: dict[str, Any] = {"api_version": {"version": version}, "tokens": {"input_tokens": record.tokens}}
    warnings = []
    if blank:
        warnings.append(f"Blank and not ranked: {_named([f'/documents/{i}' for i in blank])}.")
    if record.truncated:
        cut, limit = _named(list(map(places.place, record.truncated))), pipeline.model.manifest.max_tokens
        warnings.append(f"Truncated to the model's {limit} tokens: {cut}. To refuse, set truncate to NONE.")
    if warnings:
        meta["warnings"] = warnings
    return TaskResponse.of(
        {
            "id": record.id,
            "results": results,
            "meta": meta,
            "model": pipeline.model.manifest.name,
            "usage": {"total_tokens": record.tokens},
        }
    )


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
PAGES: Final[tuple[Page, ...]] = ()
