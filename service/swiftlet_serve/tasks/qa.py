"""Extractive question answering: the span of the context that answers the question.

The semantics match `QuestionAnsweringPipeline` in transformers 4.57.1, the last release line that has it.
`start` and `end` count code points of the context as sent, and `context[start:end] == answer` always holds. Only spans
of the context are candidates. The pipeline adds empty answers with score 0 if it runs out of spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Manifest
from swiftlet_models.encodings import TokenizedText, Window
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.tasks._requests import (
    LEAST_ITEM_BYTES,
    MAX_INPUTS,
    Failure,
    OneByOne,
    Request,
    Strict,
    Texts,
    empty_input,
    input_too_long,
    pointers,
)
from swiftlet_serve.types import Row

HEAD: Final = "token"
OUTPUTS: Final = 2  # the logits that the answer starts, and that it ends, at a token

MAX_CHARACTERS: Final = 1 << 18  # of all distinct texts of a request: tokenising them takes about 0.25 s
MAX_WINDOWS: Final = 256  # in one request
FEW_WORDS: Final = 15  # have more spans than a request may ask for
DEFAULT_MAX_SEQ_LEN: Final = 384
DEFAULT_DOC_STRIDE: Final = 128

EXAMPLE: Final[Any] = {"question": "Where does Clara live?", "context": "Clara is a baker. She lives in Bern."}


Floats = NDArray[np.float64]


class Sample(Strict):
    """A question with its context."""

    question: Annotated[str, Field(description="The question.")]
    context: Annotated[str, Field(description="The text that may hold the answer. It may exceed the model's limit.")]


class Samples(Strict):
    """Several questions, with one context or with one context each."""

    question: Annotated[Texts, Field(description="The questions.")]
    context: Annotated[str | Texts, Field(description="One context for all questions, or one for each.")]


class QaParameters(Strict):
    """Options for the answers, and for the windows of a long context."""

    top_k: Annotated[int | None, Field(description="Number of answers to return. Default: 1.", ge=1, le=100)] = None
    topk: Annotated[int | None, Field(description="An older name of top_k.", ge=1, le=100)] = None
    doc_stride: Annotated[
        int | None,
        Field(description="Overlap of two windows in tokens. Default: 128, at most half of max_seq_len.", ge=0),
    ] = None
    max_answer_len: Annotated[int, Field(description="Maximum length of an answer in tokens.", ge=1, le=1000)] = 15
    max_seq_len: Annotated[
        int | None,
        Field(description="Maximum tokens of a window, question included. Default: 384, or the model's limit.", ge=1),
    ] = None
    max_question_len: Annotated[int | None, Field(description="Has no effect, as in the pipeline.", ge=1)] = None
    handle_impossible_answer: Annotated[bool, Field(description="Allows the empty answer (no answer).")] = False
    align_to_words: Annotated[bool, Field(description="Extends answers to whole words.")] = True

    @property
    def answers(self) -> int:
        """The number of answers to return."""
        return self.top_k or self.topk or 1


DEFAULTS: Final = QaParameters()


class QaRequest(Request):
    """A question answering request in the Hugging Face Inference format."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": EXAMPLE, "parameters": {"top_k": 1}}]})

    inputs: Annotated[
        Sample | Samples | Annotated[list[Sample], Field(min_length=1, max_length=MAX_INPUTS)],
        Field(description="A question with its context, or several."),
    ]
    parameters: Annotated[QaParameters | None, Field(description="Optional parameters.")] = None


class Answer(BaseModel):
    """A span of the context: context[start:end] == answer."""

    score: Annotated[
        float,
        Field(
            description="Probability of the span, or the sum of those of equal answers. The windows of a long context "
            "overlap and each has probabilities of its own, so that a sum may exceed 1."
        ),
    ]
    start: Annotated[int, Field(description="Start of the answer in the context, in code points.")]
    end: Annotated[int, Field(description="End of the answer, exclusive.")]
    answer: Annotated[str, Field(description="Text of the answer. Empty if the context holds no answer.")]


def create(tokenizer: Tokenizer, manifest: Manifest) -> Qa:
    """Makes the task of one artifact.

    Raises:
        ValueError: the artifact has labels, or a head of another width.
    """
    tasks.check_unlabelled(manifest)
    if manifest.width != OUTPUTS:
        raise ValueError(f"qa needs {OUTPUTS} outputs per token, and the artifact has {manifest.width}.")
    return Qa(tokenizer, manifest.max_tokens)


class Qa(OneByOne):
    """One sequence for each window of each context. Its row holds the start and end logits of its tokens, (L, 2)."""

    Request = QaRequest
    Response = Answer | list[Answer | list[Answer] | Failure]

    def __init__(self, tokenizer: Tokenizer, max_tokens: int):
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens

    def encode(self, request: QaRequest) -> list[Window]:
        """Encodes each window of each context as one sequence.

        Raises:
            Unprocessable: a text is empty or too long, or the parameters contradict each other.
        """
        parameters = request.parameters or DEFAULTS
        max_seq_len = self._max_seq_len(parameters)
        samples = list_samples(request)
        tokenized = self._tokenize(samples)
        windows: list[Window] = []
        for index, sample in enumerate(samples):
            question, context = tokenized[sample.question], tokenized[sample.context]
            size = self._window_size(sample, question, context, max_seq_len)
            stride = _stride(parameters, max_seq_len, size) if len(context) > size else 0
            if len(windows) + (len(context) - stride) // (size - stride) > MAX_WINDOWS:
                detail = f"The contexts make more than {MAX_WINDOWS} windows. Send less text in one request."
                raise input_too_long(sample.context_at, detail, MAX_WINDOWS)
            windows += self.tokenizer.windows(question, context, index, size, stride)
        return windows

    def least_response_bytes(self, request: QaRequest) -> int:
        """Returns a lower bound of the size of the response: how many answers are distinct is not known before."""
        answers = (request.parameters or DEFAULTS).answers
        if answers == 1:
            return 0
        spans = [_least_spans(sample.context) for sample in list_samples(request)]
        return sum([min(answers, count) for count in spans]) * LEAST_ITEM_BYTES

    def decode(self, request: QaRequest, encodings: Sequence[Window], rows: Sequence[Row]) -> object:
        """Returns one answer for each question, or a list of answers if `top_k` is above 1.

        A request with one question has no outer list.
        """
        parameters = request.parameters or DEFAULTS
        samples = list_samples(request)
        windows: list[list[tuple[Window, Row]]] = [[] for _ in samples]
        for window, row in zip(encodings, rows, strict=True):
            windows[window.question_index].append((window, row))
        pairs = zip(samples, windows, strict=True)
        ranked = [best_answers(sample.context, own, parameters) for sample, own in pairs]
        responses = [best[0] if parameters.answers == 1 else best for best in ranked]
        return responses[0] if len(responses) == 1 else responses

    def split(self, request: QaRequest) -> list[QaRequest]:
        """Returns one request for each question. A context of several questions counts once for each.

        Raises:
            Unprocessable: there are not as many contexts as questions, or too many characters.
        """
        samples = list_samples(request)
        if len(samples) > 1 and sum(len(sample.question) + len(sample.context) for sample in samples) > MAX_CHARACTERS:
            detail = f"The questions, each with its context, have more than {MAX_CHARACTERS} characters. Send fewer."
            raise input_too_long("/inputs", detail, MAX_CHARACTERS)
        inputs = [Sample(question=sample.question, context=sample.context) for sample in samples]
        return [request.model_copy(update={"inputs": sample}) for sample in in_turns(inputs)]

    def _max_seq_len(self, parameters: QaParameters) -> int:
        max_seq_len = parameters.max_seq_len or min(self.max_tokens, DEFAULT_MAX_SEQ_LEN)
        if max_seq_len > self.max_tokens:
            raise _invalid(
                "max_seq_len", f"max_seq_len exceeds the limit of {self.max_tokens} tokens. Lower it.", self.max_tokens
            )
        if (parameters.doc_stride or 0) > max_seq_len:
            raise _invalid("doc_stride", "doc_stride exceeds max_seq_len. Lower it, or raise max_seq_len.", max_seq_len)
        return max_seq_len

    def _window_size(
        self, sample: LocatedSample, question: TokenizedText, context: TokenizedText, max_tokens: int
    ) -> int:
        """Returns the number of context tokens in a window, once both texts are known to have content."""
        if not sample.question.strip() or not len(question):
            raise empty_input(sample.question_at)
        if not sample.context.strip() or not len(context):
            raise empty_input(sample.context_at)
        size = self.tokenizer.max_context_tokens(question, max_tokens)
        if size < 1:
            limit = max_tokens - self.tokenizer.special_count(pair=True) - 1
            if limit < 1:
                raise _invalid("max_seq_len", "max_seq_len leaves no room for a question. Raise it.", max_tokens)
            detail = f"The question has more than {limit} tokens. Shorten it."
            raise input_too_long(sample.question_at, detail, limit)
        return size

    def _tokenize(self, samples: Sequence[LocatedSample]) -> dict[str, TokenizedText]:
        """Tokenises each distinct text once, after a check of the lengths."""
        places: dict[str, str] = {}
        for sample in samples:
            places.setdefault(sample.question, sample.question_at)
            places.setdefault(sample.context, sample.context_at)
        total = 0
        for text, pointer in places.items():
            total += len(text)
            if total > MAX_CHARACTERS:
                detail = f"The texts have more than {MAX_CHARACTERS} characters. Send less text in one request."
                raise input_too_long(pointer, detail, MAX_CHARACTERS)
        return dict(zip(places, self.tokenizer.tokenize(list(places)), strict=True))


class LocatedSample(NamedTuple):
    """One question with its context, and the places of both in the request body."""

    question: str
    context: str
    question_at: str
    context_at: str  # JSON Pointers


def list_samples(request: QaRequest) -> list[LocatedSample]:
    """Returns every question with its context, in the order of the answers.

    Raises:
        Unprocessable: there are not as many contexts as questions.
    """
    inputs = request.inputs
    if not isinstance(inputs, Samples):
        samples = inputs if isinstance(inputs, list) else [inputs]
        return [
            LocatedSample(sample.question, sample.context, f"{pointer}/question", f"{pointer}/context")
            for sample, pointer in zip(samples, pointers(inputs), strict=True)
        ]
    shared = isinstance(inputs.context, str)
    contexts = [inputs.context] * len(inputs.question) if isinstance(inputs.context, str) else inputs.context
    if len(contexts) != len(inputs.question):
        detail = "The number of contexts differs from the number of questions. Send one context, or one for each."
        raise invalid_value("/inputs/context", "wrong_length", detail, len(inputs.question))
    return [
        LocatedSample(question, context, f"/inputs/question/{i}", "/inputs/context" + ("" if shared else f"/{i}"))
        for i, (question, context) in enumerate(zip(inputs.question, contexts, strict=True))
    ]


def _least_spans(context: str) -> int:
    """Returns how many spans the first words of a context have."""
    words = len(context.split(maxsplit=FEW_WORDS))
    return words * (words + 1) // 2


def best_answers(context: str, windows: Sequence[tuple[Window, Row]], parameters: QaParameters) -> list[dict[str, Any]]:
    """Returns the best answers over all windows of one context, best first.

    Answers with equal text are merged. The score is the sum of theirs and may exceed 1.
    """
    none = 1.0
    answers: dict[str, dict[str, Any]] = {}
    # Alignment to words makes some candidates equal.
    candidates = 2 * parameters.answers + 10 if parameters.align_to_words else parameters.answers
    for window, row in in_turns(windows):
        starts, ends, none_here = probabilities(window, row)
        none = min(none, none_here)
        for first, last, score in best_spans(starts, ends, candidates, parameters.max_answer_len):
            start, end = window.span(first, last, words=parameters.align_to_words)
            text = context[start:end]
            key = text.lower()
            if key in answers:
                answers[key]["score"] += score
            else:
                answers[key] = {"score": score, "start": start, "end": end, "answer": text}
    ranked = list(answers.values())
    if parameters.handle_impossible_answer:
        ranked.append({"score": none, "start": 0, "end": 0, "answer": ""})
    return sorted(ranked, key=itemgetter("score"), reverse=True)[: parameters.answers]


def probabilities(window: Window, row: Row) -> tuple[Floats, Floats, float]:
    """Returns the probabilities that the answer starts and ends at each context token, and that no answer exists."""
    stop = window.context_start + len(window.part)
    logits = np.empty((OUTPUTS, 1 + len(window.part)))
    logits[:, 0] = row[0]  # no answer
    logits[:, 1:] = row[window.context_start : stop].T
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    # Summed one by one, as numpy sums the columns of a row.
    starts, ends = odds / np.add.accumulate(odds, axis=1)[:, -1:]
    return starts[1:], ends[1:], float(starts[0] * ends[0])


def best_spans(starts: Floats, ends: Floats, count: int, longest: int) -> list[tuple[int, int, float]]:
    """Returns the `count` best spans of at most `longest` tokens, best first: first token, last token, score.

    Of equal spans, those that begin first are better, and of these, those that end first.
    """
    tokens, longest = len(starts), min(longest, len(starts))
    padded = np.zeros(tokens + longest - 1)
    padded[:tokens] = ends
    # The best span from a token ends at the largest of the next probabilities. The `count`th best of these spans has
    # the lowest score that may be returned, so that few tokens begin such a span.
    best = starts * _sliding_max(padded, longest)
    lowest = np.partition(best, -count)[-count] if count < tokens else 0.0
    begins = np.flatnonzero(best >= lowest)
    scores = starts[begins, None] * padded[begins[:, None] + np.arange(longest)]
    row, length = np.nonzero(scores >= lowest)
    columns = scores[row, length].tolist(), begins[row].tolist(), length.tolist()
    spans = [
        (-score, first, first + more) for score, first, more in zip(*columns, strict=True) if first + more < tokens
    ]
    return [(first, last, -score) for score, first, last in sorted(spans)[:count]]


def _sliding_max(values: Floats, size: int) -> Floats:
    """Returns the largest of each number and the `size - 1` after it: N + size - 1 numbers become N."""
    covered = 1
    while covered < size:
        step = min(covered, size - covered)
        values = np.maximum(values[:-step], values[step:])
        covered += step
    return values


def _stride(parameters: QaParameters, max_seq_len: int, size: int) -> int:
    """Returns the overlap of two windows in tokens: as requested, or the pipeline's default.

    Beside a long question, the default would leave less than a quarter of a window for new tokens. Then it is half.
    """
    if parameters.doc_stride is None:
        default = min(DEFAULT_DOC_STRIDE, max_seq_len // 2)
        return default if 4 * default <= 3 * size else size // 2
    if parameters.doc_stride >= size:
        detail = "doc_stride is too large: beside the question, a window has no room for new tokens. Lower it."
        raise _invalid("doc_stride", detail, size - 1)
    return parameters.doc_stride


def _invalid(name: str, detail: str, limit: int) -> Unprocessable:
    return invalid_value(f"/parameters/{name}", "less_than_equal", detail, limit)


TASK: Final = Qa
