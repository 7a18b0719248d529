"""The protocol of Hugging Face's text-embeddings-inference (TEI).

A list of two strings is a pair of texts there, and a list of lists is a batch: the opposite of `/classify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_models.artifact import Manifest, Output, Side
from swiftlet_serve import build_info
from swiftlet_serve.errors import SwiftletError, invalid_value
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts import tokenization
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation, Page, translation
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation, dump
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed, sentence
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import MAX_INPUTS, Cut, Texts
from swiftlet_serve.tasks.embed import MAX_ITEMS, Ids, Inputs, TokenIdsRequest, has_ids
from swiftlet_serve.tasks.rerank import MAX_TEXTS
from swiftlet_serve.telemetry.request_record import RequestRecord

ERROR_TYPES: Final[Mapping[str, str]] = {
    "overloaded": "Overloaded",
    "quota_exceeded": "Overloaded",
    "empty_input": "Empty",
}
"""The names of TEI's errors, by code. Other errors are named by their status."""
ERROR_TYPES_BY_STATUS: Final[Mapping[int, str]] = {500: "Backend", 503: "Unhealthy", 504: "Overloaded"}


RENAMED: Final = renamed({"/parameters/truncation": "/truncate", "/parameters": ""})
RENAMED_RANK: Final = renamed({"/inputs": "", "/parameters/truncation": "/truncate", "/parameters": ""})
TRUNCATION: Final = "set truncate to true"

SIDES: Final[Mapping[str, Side]] = {"left": "left", "Left": "left", "right": "right", "Right": "right"}


class Truncating(ForeignBody):
    """The field of a request that tells on which side long texts are cut, if they are."""

    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    def cut(self) -> Cut:
        """Returns how they are cut."""
        return Cut(side=None if self.truncation_direction is None else SIDES[self.truncation_direction])


class PredictRequest(Truncating):
    """A prediction request of TEI: a text, a pair of texts, or a batch of lists of one or two texts."""

    inputs: str | Annotated[list[str], Field(max_length=2)] | Annotated[list[list[str]], Field(max_length=MAX_INPUTS)]
    truncate: bool | None = None
    raw_scores: bool = False


class Prediction(BaseModel):
    """A label and its score."""

    score: float
    label: str


class EmbedRequest(Truncating):
    """An embedding request of TEI and of Hugging Face's clients."""

    max_items: ClassVar[int] = MAX_ITEMS

    inputs: Inputs
    truncate: bool | None = None
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None


class FormRequest(Truncating):
    """A request of TEI for another form of an embedding."""

    inputs: str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
    truncate: bool | None = None
    prompt_name: str | None = None


class Weight(BaseModel):
    """A token's id and its weight."""

    index: int
    value: float


class TokenizeRequest(ForeignBody):
    """A request of TEI for the tokens of texts."""

    inputs: str | Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None


class Token(BaseModel):
    """A token and its place in the text, in code points. A special token has no place."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class DecodeRequest(ForeignBody):
    """A request of TEI for the texts of token ids."""

    max_items: ClassVar[int] = MAX_ITEMS

    ids: Ids
    skip_special_tokens: bool = True


class RerankRequest(Truncating):
    """A ranking request of TEI."""

    query: str
    texts: list[str] = Field(min_length=1, max_length=MAX_TEXTS)
    truncate: bool | None = None
    raw_scores: bool = False
    return_text: bool = False


class Rank(BaseModel):
    """A text and its score. `text` is there if the request asks for it."""

    index: int
    score: float
    text: str | None = None


class Sentences(ForeignBody):
    """A sentence, and those that it is compared with."""

    source_sentence: str
    sentences: list[str] = Field(min_length=1, max_length=MAX_INPUTS - 1)


class SimilarityOptions(Truncating):
    """Options for long sentences, and the prompt."""

    truncate: bool = True
    prompt_name: str | None = None


class SimilarityRequest(ForeignBody):
    """A similarity request of TEI and of Hugging Face's clients."""

    inputs: Sentences
    parameters: SimilarityOptions = SimilarityOptions()


def predict(runtime: Runtime, request: Request) -> Translation:
    """Translates a prediction request."""
    pipeline, body = _default(runtime, request, "classify"), bodies.parse(PredictRequest, request.body)
    inputs = body.inputs
    is_batch = bool(inputs) and isinstance(inputs[0], list)
    texts = [_text(item, f"/inputs/{i}") for i, item in enumerate(inputs)] if is_batch else _text(inputs, "/inputs")
    fields = {
        "inputs": texts,
        "parameters": {
            # TEI fails for a long text unless it is started with --auto-truncate.
            "truncation": bool(body.truncate),
            "function_to_apply": "none" if body.raw_scores else None,
        },
    }

    def render(answer: Any, _: RequestRecord) -> TaskResponse:
        return TaskResponse.of(answer if is_batch else answer[0])

    return translation(pipeline, fields, render, Wording(_of_pair, TRUNCATION), cut=body.cut())


def embed(runtime: Runtime, request: Request) -> Translation:
    """Translates an embedding request."""
    pipeline, body = _default(runtime, request, "embed"), bodies.parse(EmbedRequest, request.body)
    parameters = body.model_dump(
        include={"normalize", "prompt_name", "dimensions", "encoding_format"}, exclude_none=True
    )
    fields = {"inputs": body.inputs, "parameters": parameters | {"output": "dense", "truncation": bool(body.truncate)}}
    if not has_ids(body.inputs):
        return translation(pipeline, fields, TaskResponse.of, Wording(RENAMED, TRUNCATION), cut=body.cut())
    ids = fields | {"whole": True}  # TEI adds no special tokens to ids
    return translation(
        pipeline, ids, TaskResponse.of, Wording(RENAMED, TRUNCATION), model=TokenIdsRequest, cut=body.cut()
    )


def embed_sparse(runtime: Runtime, request: Request) -> Translation:
    """Translates a request for sparse vectors."""

    def render(answer: Any, _: RequestRecord) -> TaskResponse:
        pairs = (zip(vector["indices"], vector["values"], strict=True) for vector in answer)
        return TaskResponse.of([[{"index": index, "value": value} for index, value in vector] for vector in pairs])

    return _form(runtime, request, "sparse", render)


def embed_all(runtime: Runtime, request: Request) -> Translation:
    """Translates a request for the vectors of all tokens."""
    return _form(runtime, request, "multi_vector", TaskResponse.of)


def _form(
    runtime: Runtime, request: Request, output: Output, render: Callable[[Any, RequestRecord], TaskResponse]
) -> Translation:
    pipeline, body = _default(runtime, request, "embed"), bodies.parse(FormRequest, request.body)
    parameters = {"output": output, "prompt_name": body.prompt_name, "truncation": bool(body.truncate)}
    fields = {"inputs": body.inputs, "parameters": parameters}
    return translation(pipeline, fields, render, Wording(RENAMED, TRUNCATION), cut=body.cut())


def tokenize(runtime: Runtime, request: Request) -> Translation:
    """Translates a request for tokens, to the first served model."""
    pipeline, body = runtime.catalog.find(None, request.version), bodies.parse(TokenizeRequest, request.body)
    if body.prompt_name is not None:
        raise invalid_value(
            "/prompt_name", "unsupported", "Tokens are those of the text alone. Put the prompt before the text."
        )
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    own = tokenization.TokenizeRequest.model_construct(inputs=texts, special_tokens=body.add_special_tokens)

    def write(texts: Iterable[tokenization.Parts]) -> bytes:
        return b"[%b]" % b",".join([b"[%b]" % b",".join([dump(part)[1:-1] for part in text if part]) for text in texts])

    task = tokenization.Tokenize(pipeline.model.tokenizer)
    return tokenization.translation(pipeline, task, own, write, Wording())


def decode(runtime: Runtime, request: Request) -> Translation:
    """Translates a request for the texts of token ids, to the first served model."""
    pipeline, body = runtime.catalog.find(None, request.version), bodies.parse(DecodeRequest, request.body)
    is_one = isinstance(body.ids[0], int)
    rows: Any = [body.ids] if is_one else body.ids
    own = tokenization.DetokenizeRequest.model_construct(inputs=rows, skip_special_tokens=body.skip_special_tokens)
    wording = Wording(renamed({"/inputs/0": "/ids"} if is_one else {"/inputs": "/ids"}))
    task = tokenization.Detokenize(pipeline.model.tokenizer)
    return tokenization.translation(pipeline, task, own, dump, wording)


def rerank(runtime: Runtime, request: Request) -> Translation:
    """Translates a ranking request."""
    pipeline, body = _default(runtime, request, "rerank"), bodies.parse(RerankRequest, request.body)
    fields = {
        "inputs": {"query": body.query, "texts": body.texts},
        "parameters": {
            "truncation": bool(body.truncate),
            "raw_scores": body.raw_scores,
            "return_documents": body.return_text,
        },
    }
    return translation(pipeline, fields, TaskResponse.of, Wording(RENAMED_RANK, TRUNCATION), cut=body.cut())


def similarity(runtime: Runtime, request: Request) -> Translation:
    """Translates a similarity request: the cosines of one sentence's vector with the vectors of others."""
    pipeline, body = _default(runtime, request, "embed"), bodies.parse(SimilarityRequest, request.body)
    fields = {
        "inputs": [body.inputs.source_sentence, *body.inputs.sentences],
        "parameters": {
            "normalize": True,
            "output": "dense",
            "truncation": body.parameters.truncate,
            "prompt_name": body.parameters.prompt_name,
        },
    }

    def render(vectors: Any, _: RequestRecord) -> TaskResponse:
        source, *others = np.array(vectors)
        return TaskResponse.of([float(source @ vector) for vector in others])

    return translation(pipeline, fields, render, Wording(_of_sentence, TRUNCATION), cut=body.parameters.cut())


def _of_pair(pointer: str) -> str:
    """Returns the place of a part of a prediction request. A pair of texts is a list there."""
    return RENAMED(pointer).replace("/text_pair", "/1").replace("/text", "/0")


def _of_sentence(pointer: str) -> str:
    """Returns the place of a part of a similarity request. The source sentence is the first of our inputs."""
    beginning, _, number = pointer.rpartition("/")
    if beginning == "/inputs":
        return f"/inputs/sentences/{int(number) - 1}" if int(number) else "/inputs/source_sentence"
    return {"/inputs": "/inputs/sentences", "/parameters/truncation": "/parameters/truncate"}.get(pointer, pointer)


def _text(item: Any, pointer: str) -> Any:
    """Returns a text or a pair of texts in our form.

    Raises:
        Unprocessable: there are no texts, or more than two.
    """
    if isinstance(item, str):
        return item
    if len(item) not in (1, 2):
        raise invalid_value(
            pointer, "wrong_length", "An input is neither a text nor a pair of texts. Send one or two texts."
        )
    return {"text": item[0], "text_pair": item[1]} if len(item) == 2 else item[0]


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error in TEI's form. The statuses are Swiftlet's."""
    kind = ERROR_TYPES.get(error.code) or ERROR_TYPES_BY_STATUS.get(error.status, "Validation")
    return JSONResponse(
        {"error": sentence(error), "error_type": kind, "code": error.code},
        error.status,
        problem_details.headers(error),
    )


def _default(runtime: Runtime, request: Request, task: str) -> Pipeline:
    """Returns the default model of a task, for requests that name none.

    Raises:
        NotFound: no model serves the task.
        ModelLoading: it is not in memory.
    """
    return runtime.catalog.pipeline(task, None, request.version)


def _info(runtime: Runtime, _: Mapping[str, str]) -> Response:
    pipeline = runtime.catalog.find(None)
    manifest, limits = pipeline.model.manifest, runtime.settings
    return JSONResponse(
        {
            "model_id": manifest.name,
            "model_sha": None,
            "model_dtype": manifest.precision,
            "served_model_name": manifest.name,
            "model_type": _kind(manifest),
            "max_concurrent_requests": limits.max_queued_tokens,
            "max_input_length": manifest.max_tokens,
            "max_batch_tokens": pipeline.model.manifest.max_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": MAX_INPUTS,
            "auto_truncate": False,
            "tokenization_workers": limits.cores,
            "version": build_info.version(),
            "sha": build_info.revision(),
            "docker_label": None,
        }
    )


def _kind(manifest: Manifest) -> dict[str, Any]:
    """Returns the kind of a model, as TEI names it."""
    if manifest.embedding is not None and manifest.labelling is None:
        return {"embedding": {"pooling": manifest.embedding.pooling}}
    labels = {
        "id2label": {str(i): label for i, label in enumerate(manifest.labels)},
        "label2id": {label: i for i, label in enumerate(manifest.labels)},
    }
    return {"reranker" if manifest.task == "rerank" else "classifier": labels}


def _health(runtime: Runtime, _: Mapping[str, str]) -> Response:
    runtime.check_ready()
    return Response()


EMBED_FIELDS: Final = frozenset(EmbedRequest.model_fields) - {"inputs"}

OPERATIONS: Final = (
    Operation("/predict", "Classification", predict, PredictRequest, list[Prediction]),
    Operation("/embed", "Embeddings", embed, EmbedRequest, list[list[float]], fields=EMBED_FIELDS),
    Operation("/embed_sparse", "Sparse embeddings", embed_sparse, FormRequest, list[list[Weight]]),
    Operation("/embed_all", "Embeddings of all tokens", embed_all, FormRequest, list[list[list[float]]]),
    Operation("/rerank", "Ranked texts", rerank, RerankRequest, list[Rank], fields=frozenset({"texts"})),
    Operation("/tokenize", "Tokens of texts", tokenize, TokenizeRequest, list[list[Token]]),
    Operation("/decode", "Texts of token ids", decode, DecodeRequest, list[str]),
    Operation("/similarity", "Cosine similarities", similarity, SimilarityRequest, list[float]),
)
PAGES: Final = (
    Page("/info", "Description of the default model", _info),
    Page("/health", "Readiness check", _health, public=True),
)
