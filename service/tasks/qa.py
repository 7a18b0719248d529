"""Extractive question answering: the stretch of the context that answers the question.

The meaning is that of transformers 4.57.1's `QuestionAnsweringPipeline`, the last release line that had one. `start`
and `end` count code points of the context as it was sent, and `context[start:end] == answer`, always. Only stretches
within the context are candidates: where the pipeline runs out of those, it fills up with empty answers of score 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_serve.models.artifact import Manifest
from swiftlet_serve.models.tokenizer import CHARACTERS_PER_TOKEN, TokenizedText, Tokenizer, Window
from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import FieldError, Unprocessable
from swiftlet_serve.service.tasks import MAX_INPUTS, Failure, Floats, Strict, softmax
from swiftlet_serve.service.types import Row

MAX_CHARACTERS: Final = 1 << 18  # of all different texts of a request: about a quarter of a second of tokenising
MAX_WINDOWS: Final = 256  # in one request
DEFAULT_MAX_SEQ_LEN: Final = 384
DEFAULT_DOC_STRIDE: Final = 128

HEAD: Final = "token"
OUTPUTS: Final = 2  # the logits that the answer starts, and that it ends, at a token

Strings = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]


class Sample(Strict):
    """One question about one context."""

    question: Annotated[str, Field(description="The question.")]
    context: Annotated[str, Field(description="The text that holds the answer, of any ordinary length.")]


class Samples(Strict):
    """Several questions, about one context or each about its own."""

    question: Annotated[Strings, Field(description="The questions.")]
    context: Annotated[str | Strings, Field(description="One context for all questions, or as many as questions.")]


class QaParameters(Strict):
    """Which answers are wanted, and how a long context is cut into windows."""

    top_k: Annotated[int | None, Field(description="How many answers to return (1).", ge=1, le=100)] = None
    topk: Annotated[int | None, Field(description="An older name of top_k.", ge=1, le=100)] = None
    doc_stride: Annotated[
        int | None,
        Field(description="How many tokens a window repeats of the one before (128, at most half a window).", ge=0),
    ] = None
    max_answer_len: Annotated[int, Field(description="The longest answer, in tokens.", ge=1, le=1000)] = 15
    max_seq_len: Annotated[
        int | None,
        Field(description="The longest window, question included, in tokens (384 or the model's limit).", ge=1),
    ] = None
    max_question_len: Annotated[
        int | None, Field(description="Accepted for compatibility; as in the pipeline it has no effect.", ge=1)
    ] = None
    handle_impossible_answer: Annotated[
        bool, Field(description="Whether the empty answer, that there is none, may win.")
    ] = False
    align_to_words: Annotated[bool, Field(description="Whether answers begin and end at whole words.")] = True

    @property
    def wanted(self) -> int:
        """How many answers, under either name."""
        return self.top_k or self.topk or 1


class QaRequest(tasks.Request):
    """A question answering request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": {"question": "Where does Clara live?", "context": "Clara is a baker. She lives in Bern."},
                    "parameters": {"top_k": 1},
                }
            ]
        }
    )

    inputs: Annotated[
        Sample | Samples | Annotated[list[Sample], Field(min_length=1, max_length=MAX_INPUTS)],
        Field(description="A question with its context, or several."),
    ]
    parameters: Annotated[QaParameters | None, Field(description="All are optional.")] = None


class Answer(BaseModel):
    """A stretch of the context: context[start:end] == answer."""

    score: Annotated[float, Field(description="How likely it is; answers that read alike are one, with their sum.")]
    start: Annotated[int, Field(description="Where it starts in the context, in code points.")]
    end: Annotated[int, Field(description="Where it ends, exclusive.")]
    answer: Annotated[str, Field(description="The text itself; empty if the context holds no answer.")]


@dataclass(frozen=True)
class Question:
    """One question as asked, and where in the body its parts stand."""

    question: str
    context: str
    question_at: str
    context_at: str


def create(tokenizer: Tokenizer, manifest: Manifest) -> Qa:
    """Makes the task of one artifact.

    Raises:
        ValueError: the artifact has labels, or a head of another width.
    """
    tasks.check_unlabelled(manifest)
    if manifest.width != OUTPUTS:
        raise ValueError(f"qa needs {OUTPUTS} outputs per token, and the artifact has {manifest.width}.")
    return Qa(tokenizer, manifest)


def golden_inputs(tokenizer: Tokenizer) -> Sequence[dict[str, str]]:  # noqa: ARG001  # all tasks share one signature
    """Returns questions with their contexts. The second context does not answer its question."""
    return (
        {
            "question": "Who built the bridge?",
            "context": "The old bridge over the Linn was built by Marta Keller in 1874, after the great flood.",
        },
        {
            "question": "When did the flood come?",
            "context": "Nobody remembers the flood of 1871 now, though the church wall still bears its mark.",
        },
        {
            "question": "What does the baker sell?",
            "context": "Every morning the baker at the corner opens at six. He sells bread, rolls and plum cake.",
        },
    )


class Qa:
    """One encoding for each window of each context; one row, start and end logits of its tokens, for each encoding."""

    Request = QaRequest
    Response = Answer | list[Answer | list[Answer] | Failure]

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        self._tokenizer = tokenizer
        self._max_tokens = manifest.max_tokens

    def encode(self, request: QaRequest) -> list[Window]:
        """Raises errors.Unprocessable: a text is empty or too long, or the windows' sizes contradict each other."""
        parameters = request.parameters or QaParameters()
        max_seq_len = self._max_seq_len(parameters)
        asked = questions(request)
        readings = self._read(asked, max_seq_len)
        found: list[Window] = []
        for item, one in enumerate(asked):
            question, context = readings[one.question], readings[one.context]
            room = self._room(one, question, context, max_seq_len)
            stride = _stride(parameters, max_seq_len, room) if len(context) > room else 0
            if len(found) + (len(context) - stride) // (room - stride) > MAX_WINDOWS:
                detail = f"The contexts make more than {MAX_WINDOWS} windows."
                raise tasks.input_too_long(one.context_at, detail, MAX_WINDOWS)
            found += self._tokenizer.windows(question, context, item, room, stride)
        return found

    def decode(self, request: QaRequest, encodings: Sequence[Window], rows: Sequence[Row]) -> object:
        """An answer, or a list of them where top_k is above 1; a list of these for several questions."""
        parameters = request.parameters or QaParameters()
        asked = questions(request)
        scored: list[list[tuple[Window, Row]]] = [[] for _ in asked]
        for window, row in zip(encodings, rows, strict=True):
            scored[window.question_index].append((window, row))
        responses: list[object] = []
        for one, windows in zip(asked, scored, strict=True):
            best = answers(one.context, windows, parameters)
            responses.append(best[0] if parameters.wanted == 1 else best)
        return responses[0] if len(responses) == 1 else responses

    def split(self, request: QaRequest) -> list[QaRequest]:
        """For each question a request with it alone.

        Raises:
            errors.Unprocessable: there are not as many contexts as questions, or too much to read: each question's
                context is read anew, and counts anew.
        """
        asked = questions(request)
        if len(asked) > 1 and sum(len(one.question) + len(one.context) for one in asked) > MAX_CHARACTERS:
            detail = f"The texts, with each question's own context, have more than {MAX_CHARACTERS} characters."
            raise tasks.input_too_long("/inputs", detail, MAX_CHARACTERS)
        samples = [Sample(question=one.question, context=one.context) for one in asked]
        return [request.model_copy(update={"inputs": sample}) for sample in samples]

    def single(self, response: object) -> object:
        """The answer, or the answers, to the one question."""
        return response

    def _max_seq_len(self, parameters: QaParameters) -> int:
        max_seq_len = parameters.max_seq_len or min(self._max_tokens, DEFAULT_MAX_SEQ_LEN)
        if max_seq_len > self._max_tokens:
            raise _wrong("max_seq_len", f"This model reads at most {self._max_tokens} tokens.", self._max_tokens)
        if (parameters.doc_stride or 0) > max_seq_len:
            raise _wrong("doc_stride", "doc_stride is larger than max_seq_len.", max_seq_len)
        return max_seq_len

    def _room(self, one: Question, question: TokenizedText, context: TokenizedText, max_seq_len: int) -> int:
        """How many tokens of the context a window holds, once it is clear that there is something to read."""
        for text, reading, at in ((one.question, question, one.question_at), (one.context, context, one.context_at)):
            if not text.strip() or not len(reading):
                raise tasks.empty_input(at)
        room = self._tokenizer.max_context_tokens(question, max_seq_len)
        if room < 1:
            limit = max_seq_len - self._tokenizer.special_count(pair=True) - 1
            raise tasks.input_too_long(one.question_at, f"A question has more than {limit} tokens.", limit)
        return room

    def _read(self, asked: Sequence[Question], max_seq_len: int) -> dict[str, TokenizedText]:
        """Tokenises each different text once, after a look at how much there is of it."""
        total = 0
        for text, at, most in _texts(asked, CHARACTERS_PER_TOKEN * max_seq_len):
            total += len(text)
            if len(text) > most or total > MAX_CHARACTERS:
                limit = min(most, MAX_CHARACTERS)
                raise tasks.input_too_long(at, f"The texts have more than {limit} characters.", limit)
        texts = list(dict.fromkeys(text for one in asked for text in (one.question, one.context)))
        return dict(zip(texts, self._tokenizer.tokenize(texts), strict=True))


def questions(request: QaRequest) -> list[Question]:
    """Every question with its context, in the order of the answers.

    Raises:
        errors.Unprocessable: there are not as many contexts as questions.
    """
    inputs = request.inputs
    if isinstance(inputs, Sample):
        return [Question(inputs.question, inputs.context, "/inputs/question", "/inputs/context")]
    if isinstance(inputs, list):
        return [
            Question(one.question, one.context, f"/inputs/{i}/question", f"/inputs/{i}/context")
            for i, one in enumerate(inputs)
        ]
    if isinstance(inputs.context, str):
        return [
            Question(question, inputs.context, f"/inputs/question/{i}", "/inputs/context")
            for i, question in enumerate(inputs.question)
        ]
    if len(inputs.context) != len(inputs.question):
        fault = FieldError("/inputs/context", "wrong_length", len(inputs.question))
        raise Unprocessable("validation_failed", "There must be as many contexts as questions.", field_errors=[fault])
    return [
        Question(question, context, f"/inputs/question/{i}", f"/inputs/context/{i}")
        for i, (question, context) in enumerate(zip(inputs.question, inputs.context, strict=True))
    ]


def answers(context: str, scored: Sequence[tuple[Window, Row]], parameters: QaParameters) -> list[dict[str, Any]]:
    """The best answers over all windows of one context, best first.

    Answers that read alike are one answer, whose score is the sum: it may exceed 1.
    """
    null = 1.0
    found: dict[str, dict[str, Any]] = {}
    # Aligning to words makes some candidates equal.
    candidates = 2 * parameters.wanted + 10 if parameters.align_to_words else parameters.wanted
    for window, row in scored:
        starts, ends, null_here = probabilities(window, row)
        null = min(null, null_here)
        places = window.word_spans if parameters.align_to_words else window.token_spans
        for first, last, score in best_spans(starts, ends, candidates, parameters.max_answer_len):
            start, end = int(places[first, 0]), int(places[last, 1])
            answer = context[start:end]
            same = found.setdefault(answer.lower(), {"score": 0.0, "start": start, "end": end, "answer": answer})
            same["score"] += score
    ranked = list(found.values())
    if parameters.handle_impossible_answer:
        ranked.append({"score": null, "start": 0, "end": 0, "answer": ""})
    return sorted(ranked, key=lambda answer: answer["score"], reverse=True)[: parameters.wanted]


def probabilities(window: Window, row: Row) -> tuple[Floats, Floats, float]:
    """For each context token that an answer starts, and ends, there; and that there is none (the first token)."""
    last = window.context_start + len(window.token_spans)
    logits = np.concatenate([row[:1], row[window.context_start : last]]).astype(np.float64)
    starts, ends = softmax(logits.T)
    return starts[1:], ends[1:], float(starts[0] * ends[0])


def best_spans(starts: Floats, ends: Floats, most: int, longest: int) -> Iterator[tuple[int, int, float]]:
    """The `most` likeliest spans of at most `longest` tokens: first token, last token, score; best first."""
    count, longest = len(starts), min(longest, len(starts))
    padded = np.concatenate([ends, np.full(longest - 1, -1.0)])
    scores = starts[:, None] * np.lib.stride_tricks.sliding_window_view(padded, longest)  # (first token, length - 1)
    scores[np.arange(count)[:, None] + np.arange(longest) >= count] = -1.0
    flat = scores.ravel()
    least = np.partition(flat, -most)[-most] if most < len(flat) else 0.0
    candidates = np.flatnonzero((flat >= least) & (flat >= 0))
    for index in candidates[np.argsort(-flat[candidates], kind="stable")][:most]:
        first, extra = divmod(int(index), longest)
        yield first, first + extra, float(flat[index])


def _texts(asked: Sequence[Question], question_limit: int) -> Iterator[tuple[str, str, int]]:
    """Each different text, where it stands, and how many characters it may have."""
    seen: set[str] = set()
    for one in asked:
        for text, at, most in (
            (one.question, one.question_at, question_limit),
            (one.context, one.context_at, MAX_CHARACTERS),
        ):
            if text not in seen:
                seen.add(text)
                yield text, at, most


def _stride(parameters: QaParameters, max_seq_len: int, room: int) -> int:
    """How many context tokens windows share: as asked, or the pipeline's default where a long question leaves room."""
    if parameters.doc_stride is None:
        return min(DEFAULT_DOC_STRIDE, max_seq_len // 2, room // 2)
    if parameters.doc_stride >= room:
        raise _wrong("doc_stride", "doc_stride leaves no room to move on beside this question.", room - 1)
    return parameters.doc_stride


def _wrong(name: str, detail: str, limit: int) -> Unprocessable:
    fault = FieldError(f"/parameters/{name}", "less_than_equal", limit)
    return Unprocessable("validation_failed", detail, field_errors=[fault])
