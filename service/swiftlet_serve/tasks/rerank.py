"""Reranking: the texts that answer a query best, first.

A cross-encoder reads the query with each text, and its only output is the score, as `CrossEncoder.rank` of
sentence-transformers computes it. An embedding model reads each of them alone, and the score is the cosine of two
vectors, the product of two sparse ones, or MaxSim for a vector of each token. The manifest's head tells which of the
two an artifact is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Head, Manifest, Output, Outputs
from swiftlet_models.encodings import Encoding, Text, TextTooLong, TooManyWindows
from swiftlet_models.pair_writer import PairWriter
from swiftlet_models.tensors import HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.tasks import _windows
from swiftlet_serve.tasks._requests import (
    Cut,
    Failure,
    OneByOne,
    Request,
    Strict,
    empty_input,
    failure,
    input_too_long,
    is_blank,
    too_many_tokens,
)
from swiftlet_serve.tasks._vector_forms import Forms
from swiftlet_serve.tasks.classify import FUNCTIONS, default_function
from swiftlet_serve.types import Row

HEAD: Final[Head] = "classification"
OUTPUTS: Final[Outputs] = "labels"
OTHER_HEADS: Final[Mapping[Head, Outputs]] = {"embedding": "hidden"}
CROSS_ENCODER: Final = True
READS_HEAD: Final = True

MAX_TEXTS: Final = 1000
MAX_PROMPT_TOKENS: Final = 1 << 17  # of the query with its prompt, once for each text
MAX_INSTRUCTION: Final = 2000  # characters
QUERY_PROMPTS: Final = ("query",)  # as `encode_query` of sentence-transformers
QUERY: Final = "/inputs/query"
TEXTS: Final = "/inputs/texts"
TEXT_PROMPTS: Final = ("document", "passage", "corpus")  # as `encode_document`


class Candidates(Strict):
    """A query, and the texts to rank."""

    query: Annotated[str, Field(description="The query.")]
    texts: Annotated[list[str], Field(description="The texts to rank.", min_length=1, max_length=MAX_TEXTS)]


class RerankParameters(Strict):
    """Options for the results, the scores and long texts."""

    top_n: Annotated[int | None, Field(description="Number of texts to return. Default: all.", ge=1, le=MAX_TEXTS)] = (
        None
    )
    return_documents: Annotated[bool, Field(description="Repeats each text in the response.")] = False
    instruction: Annotated[
        str | None,
        Field(
            description="What the query asks for, for a cross-encoder whose prompt has an instruction, such as "
            "Qwen3-Reranker. Default: the model's.",
            min_length=1,
            max_length=MAX_INSTRUCTION,
        ),
    ] = None
    raw_scores: Annotated[
        bool,
        Field(description="Returns the outputs of a cross-encoder without a sigmoid. Has no effect on other scores."),
    ] = False
    output: Annotated[
        Output | None,
        Field(
            description="What an embedding model scores by. dense: the cosine of two vectors. sparse: the product of "
            "two sparse vectors. multi_vector: MaxSim. Default: the model's first."
        ),
    ] = None
    truncation: _windows.Truncation = True
    window: Annotated[
        _windows.Combination,
        Field(
            description="How the scores of windows become one, with truncation window: the mean, weighted by their "
            "tokens, or the largest."
        ),
    ] = "max"


DEFAULTS: Final = RerankParameters()


class RerankRequest(Request):
    """A query with the texts to rank."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": {"query": "How do bees dance?", "texts": ["Bees waggle.", "Rain is wet."]}}]
        }
    )

    inputs: Annotated[Candidates, Field(description="A query and texts.")]
    parameters: Annotated[RerankParameters | None, Field(description="Optional parameters.")] = None


class RankedText(BaseModel):
    """A text and its score."""

    index: Annotated[int, Field(description="Position of the text in the request, from 0.")]
    score: Annotated[float, Field(description="How well the text answers the query: higher is better.")]
    text: Annotated[str | None, Field(description="The text, with return_documents.")] = None


class UnrankedText(Failure):
    """The error of a text of a request with `partial`. It comes after the ranked texts."""

    index: Annotated[int, Field(description="Position of the text in the request, from 0.")]


def create(tokenizer: Tokenizer, manifest: Manifest, head: HeadWeights | None = None) -> Rerank:
    """Makes the task of one artifact. A model whose queries are looked up needs `head` for decoding.

    Raises:
        ValueError: the artifact is neither a cross-encoder with one output nor an embedding model.
    """
    if manifest.embedding is None and (manifest.width != 1 or manifest.problem is None):
        raise ValueError("rerank needs a classifier with one label, or an embedding model.")
    return Rerank(tokenizer, manifest, head)


class Rerank(OneByOne):
    """One sequence for each text with the query. With an embedding model: one for the query, then one for each text."""

    Request = RerankRequest
    Response = list[RankedText | UnrankedText]
    max_sequences: ClassVar[int] = MAX_TEXTS + 1  # with the query

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest, head: HeadWeights | None = None) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = manifest.max_tokens
        self.embedding = manifest.embedding
        self.forms = Forms(tokenizer, manifest, manifest.embedding, head) if manifest.embedding else None
        if self.forms:
            self.max_positions = self.forms.max_positions
        prompt = manifest.reading.pair_prompt
        self._writer = PairWriter(tokenizer, prompt) if prompt and not self.embedding else None
        self._reads_last = self.embedding is None and tasks.reads_last(manifest)
        self._function = default_function(manifest.problem, 1)

    def encode(self, request: RerankRequest) -> list[Encoding]:
        """Encodes the query and the texts. With `partial`, texts that cannot be ranked have no sequence.

        Raises:
            Unprocessable: a text is empty, or is too long while truncation is off.
        """
        query, texts = request.inputs.query, request.inputs.texts
        if is_blank(query) or not len(self.tokenizer.ids([query])[0]):
            raise empty_input(QUERY)
        encodings = self._sequences(request)
        partial, readable = request.partial and len(texts) > 1, []
        for encoding in encodings:
            error = self._error(request, encoding)
            if error is None:
                readable.append(encoding)
            elif not partial or error.field_errors[0].pointer == QUERY:
                raise error
        return readable

    def decode(
        self, request: RerankRequest, encodings: Sequence[Encoding], rows: Sequence[Row]
    ) -> list[dict[str, Any]]:
        """Returns the texts, best first. Equal scores keep the order of the request.

        With `partial`, the errors of texts that could not be ranked follow.
        """
        parameters, texts = request.parameters or DEFAULTS, request.inputs.texts
        if self.forms is None:
            apply = FUNCTIONS["none" if parameters.raw_scores else self._function]
            scores = apply([float(row[0, 0]) for row in rows])
        else:
            (output,) = self.forms.chosen(parameters.output)
            scores = self.forms.scores(output, encodings, rows)
            encodings = encodings[1:]
        numbers = list(dict.fromkeys(map(self._number, encodings)))
        if parameters.truncation == _windows.WINDOW:
            scores = list(map(float, _windows.joined(encodings, scores, _windows.JOINS[parameters.window])))
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: parameters.top_n]
        ranked: list[dict[str, Any]] = [{"index": numbers[i], "score": scores[i]} for i in best]
        if parameters.return_documents:
            ranked = [text | {"text": texts[text["index"]]} for text in ranked]
        return ranked + [self._unranked(request, i) for i in sorted(set(range(len(texts))).difference(numbers))]

    def _sequences(self, request: RerankRequest) -> list[Encoding]:
        query, texts = request.inputs.query, request.inputs.texts
        parameters = request.parameters or DEFAULTS
        output, instruction = parameters.output, parameters.instruction
        if instruction is not None and not (self._writer and self._writer.has_instruction):
            detail = "The model reads no instruction. Leave it out."
            raise invalid_value("/parameters/instruction", "unsupported", detail)
        if self.forms is None:
            if output is not None:
                detail = "The model is a cross-encoder, which has one score and no outputs. Leave output out."
                raise invalid_value("/parameters/output", "unsupported", detail)
            encodings = self._prompted(request) if self._writer else self._pairs(request)
            return tasks.read_last(encodings) if self._reads_last else encodings
        outputs, prompt = self.forms.chosen(output), self._prompt(TEXT_PROMPTS)
        first = self._alone(request, [query], self._prompt(QUERY_PROMPTS), is_query=True)
        others = self._alone(request, texts, prompt)
        others = [replace(encoding, text_index=encoding.text_index + 1) for encoding in others]
        return [*self.forms.focused(first, outputs, is_query=True), *self.forms.focused(others, outputs)]

    def _alone(
        self, request: RerankRequest, texts: Sequence[str], prompt: str, *, is_query: bool = False
    ) -> list[Encoding]:
        """Encodes the query or the texts for an embedding model."""
        assert self.forms is not None  # noqa: S101  # for the type checker
        cut = request.cut
        limit = self.forms.max_text_tokens(cut, is_query=is_query)
        most = self.forms.max_text_tokens(Cut(), is_query=is_query)
        _windows.check_cut(self.tokenizer, cut, limit, most, prompt=prompt)
        return self._cut(request, [prompt + text for text in texts], limit, prefix=prompt, is_query=is_query)

    def _pairs(self, request: RerankRequest) -> list[Encoding]:
        limit = request.cut.most(self.max_tokens)
        _windows.check_cut(self.tokenizer, request.cut, limit, self.max_tokens, pair=True)
        return self._cut(request, [(request.inputs.query, text) for text in request.inputs.texts], limit)

    def _prompted(self, request: RerankRequest) -> list[Encoding]:
        """Encodes texts in a prompt, which is never cut."""
        assert self._writer is not None  # noqa: S101  # for the type checker
        query, cut, left_out = request.inputs.query, request.cut, 0
        if cut.query_tokens is not None:
            (tokenized,) = self.tokenizer.cutting(cut.side).tokenize([query], cut.query_tokens)
            if left_out := tokenized.left_out:
                query = query[tokenized.offsets[0, 0] : tokenized.offsets[-1, 1]]
        tokenizer, prompt = self._writer.write(query, (request.parameters or DEFAULTS).instruction)
        tokens = len(tokenizer.ids([prompt])[0]) + tokenizer.special_count(pair=False)
        most = cut.most(self.max_tokens)
        if tokens >= most:
            raise too_many_tokens(QUERY, most, tokens)
        limit = MAX_PROMPT_TOKENS // len(request.inputs.texts)
        if tokens > limit:
            detail = f"Beside so many texts, query and prompt may have {limit} tokens. Send fewer texts at a time."
            raise input_too_long(QUERY, detail, limit)
        texts = [prompt + text for text in request.inputs.texts]
        encodings = self._cut(request, texts, most, prefix=prompt, tokenizer=tokenizer)
        if not left_out:
            return encodings
        return [
            replace(each, left_out=each.left_out + left_out, own_left_out=(left_out, *(each.own_left_out or (0,))))
            for each in encodings
        ]

    def _cut(
        self,
        request: RerankRequest,
        texts: Sequence[Text],
        limit: int,
        *,
        prefix: str = "",
        is_query: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> list[Encoding]:
        """Encodes texts, which are cut or read in windows. The latter need a whole query."""
        tokenizer, cut = (tokenizer or self.tokenizer).cutting(request.cut.side), request.cut
        if (request.parameters or DEFAULTS).truncation != _windows.WINDOW:
            own_limits = cut.own_limits(is_query=is_query, is_pair=not isinstance(texts[0], str))
            kept = prefix if own_limits or self._writer else ""
            return tokenizer.encode(texts, limit, own_limits=own_limits, prefix=kept)
        try:
            if is_query:
                return tokenizer.encode(texts, limit, truncate=False)
            return tokenizer.encode_windows(texts, limit, self.max_sequences, prefix=prefix, split=1)
        except TextTooLong as error:
            raise too_many_tokens(QUERY, limit, error.tokens) from None
        except TooManyWindows:
            raise _windows.too_many_windows(self.max_sequences) from None

    def _number(self, encoding: Encoding) -> int:
        """Returns the number of a text in the request, or -1 for the query."""
        return encoding.text_index - (self.embedding is not None)

    def _error(self, request: RerankRequest, encoding: Encoding) -> Unprocessable | None:
        """Returns the reason why a text or the query cannot be read."""
        number = self._number(encoding)
        place = f"{TEXTS}/{number}" if number >= 0 else QUERY
        if number >= 0 and not request.inputs.texts[number].strip():
            return empty_input(place)
        if encoding.left_out and not (request.parameters or DEFAULTS).truncation:
            own, cut = encoding.own_left_out, request.cut
            if query := self._query_left_out(encoding):
                limit, left_out = cut.query_tokens, query
            elif own and own[-1]:
                limit, left_out = cut.document_tokens, own[-1]
            else:
                limit, left_out = len(encoding.input_ids), encoding.left_out
            assert limit is not None  # noqa: S101  # for the type checker
            return too_many_tokens(QUERY if query else place, limit, limit + left_out)
        return None

    def _query_left_out(self, encoding: Encoding) -> int:
        """Returns how many tokens the query lost to its own limit, in a sequence with the query."""
        own = encoding.own_left_out
        return own[0] if len(own) == 2 or (own and self._number(encoding) < 0) else 0

    def _unranked(self, request: RerankRequest, number: int) -> dict[str, Any]:
        """Returns the error of a text that has no sequence."""
        inputs = request.inputs.model_copy(update={"texts": [request.inputs.texts[number]]})
        encoding = self._sequences(request.model_copy(update={"inputs": inputs}))[-1]
        error = self._error(request, replace(encoding, text_index=number + (self.forms is not None)))
        assert error is not None  # noqa: S101  # for the type checker
        return {"index": number, **failure(error).model_dump()}

    def truncated(self, encodings: Sequence[Encoding]) -> list[str]:
        """Returns the JSON Pointers of the query, if it was cut by itself, and of the texts that were cut, in order.

        Where a cross-encoder cuts a query with its text, the pointer is that of the text.
        """
        numbers = set()
        for encoding in encodings:
            query = self._query_left_out(encoding)
            if query:
                numbers.add(-1)
            if encoding.left_out > query:
                numbers.add(self._number(encoding))
        return [QUERY if number < 0 else f"{TEXTS}/{number}" for number in sorted(numbers)]

    def split(self, request: RerankRequest) -> list[RerankRequest]:
        """Returns the request: it has one query."""
        return [request]

    def _prompt(self, names: Sequence[str]) -> str:
        """Returns the first of the prompts that the embedding model has, or else its default one."""
        assert self.embedding is not None  # noqa: S101  # for the type checker
        prompts = self.embedding.prompts
        return next((prompts[name] for name in names if name in prompts), self.embedding.default_prompt_text())


TASK: Final = Rerank
