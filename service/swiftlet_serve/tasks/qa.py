"""Extractive question answering: the span of the context that answers the question.

The semantics are those of `QuestionAnsweringPipeline` in transformers 4.57.1, the last release line that has it.
`start` and `end` count code points of the context as sent, and `context[start:end] == answer` always holds. Only spans
of the context are candidates. The pipeline adds empty answers with score 0 if it runs out of spans.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models import datasets, metrics
from swiftlet_models.artifact import Manifest
from swiftlet_models.metrics import Score, Threshold
from swiftlet_models.tokenizer import TokenizedText, Tokenizer, Window
from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.tasks import MAX_INPUTS, Case, Failure, Floats, Grade, Strict, Texts, softmax
from swiftlet_serve.types import Row

HEAD: Final = "token"
OUTPUTS: Final = 2  # the logits that the answer starts, and that it ends, at a token

MAX_CHARACTERS: Final = 1 << 18  # of all distinct texts of a request: tokenising them takes about 0.25 s
MAX_WINDOWS: Final = 256  # in one request
FEW_WORDS: Final = 15  # have more spans than a request may ask for
DEFAULT_MAX_SEQ_LEN: Final = 384
DEFAULT_DOC_STRIDE: Final = 128

EXAMPLE: Final[Any] = {"question": "Where does Clara live?", "context": "Clara is a baker. She lives in Bern."}


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


class QaRequest(tasks.Request):
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


GOLDEN: Final = {
    "Who built the bridge?": "The old bridge over the Linn was built by Marta Keller in 1874, after the great flood.",
    "When did the flood come?": "Nobody remembers the flood of 1871 now, though the church wall still bears its mark.",
    "What does the baker sell?": "Every morning the baker at the corner opens at six. "
    "He sells bread, rolls and plum cake.",
}


def golden_inputs(tokenizer: Tokenizer) -> Sequence[dict[str, str]]:  # noqa: ARG001  # all tasks share one signature
    """Returns questions with their contexts. The second context does not answer its question."""
    return [{"question": question, "context": context} for question, context in GOLDEN.items()]


class Qa:
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
        parameters = request.parameters or QaParameters()
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
                raise tasks.input_too_long(sample.context_at, detail, MAX_WINDOWS)
            windows += self.tokenizer.windows(question, context, index, size, stride)
        return windows

    def least_response_bytes(self, request: QaRequest) -> int:
        """Returns a lower bound of the size of the response: how many answers are distinct is not known before."""
        answers = (request.parameters or QaParameters()).answers
        if answers == 1:
            return 0
        spans = [_least_spans(one.context) for one in list_samples(request)]
        return sum([min(answers, each) for each in spans]) * tasks.LEAST_ITEM_BYTES

    def decode(self, request: QaRequest, encodings: Sequence[Window], rows: Sequence[Row]) -> object:
        """Returns one answer for each question, or a list of answers if `top_k` is above 1.

        A request with one question has no outer list.
        """
        parameters = request.parameters or QaParameters()
        samples = list_samples(request)
        windows: list[list[tuple[Window, Row]]] = [[] for _ in samples]
        for window, row in zip(encodings, rows, strict=True):
            windows[window.question_index].append((window, row))
        ranked = [best_answers(one.context, own, parameters) for one, own in zip(samples, windows, strict=True)]
        responses = [best[0] if parameters.answers == 1 else best for best in ranked]
        return responses[0] if len(responses) == 1 else responses

    def split(self, request: QaRequest) -> list[QaRequest]:
        """Returns one request for each question. A context of several questions counts once for each.

        Raises:
            Unprocessable: there are not as many contexts as questions, or too many characters.
        """
        samples = list_samples(request)
        if len(samples) > 1 and sum(len(one.question) + len(one.context) for one in samples) > MAX_CHARACTERS:
            detail = f"The questions, each with its context, have more than {MAX_CHARACTERS} characters. Send fewer."
            raise tasks.input_too_long("/inputs", detail, MAX_CHARACTERS)
        inputs = [Sample(question=one.question, context=one.context) for one in samples]
        return [request.model_copy(update={"inputs": sample}) for sample in inputs]

    def single(self, response: object) -> object:
        """Returns the answer, or the answers, to the only question."""
        return response

    def _max_seq_len(self, parameters: QaParameters) -> int:
        max_seq_len = parameters.max_seq_len or min(self.max_tokens, DEFAULT_MAX_SEQ_LEN)
        if max_seq_len > self.max_tokens:
            raise _invalid(
                "max_seq_len", f"max_seq_len exceeds the limit of {self.max_tokens} tokens.", self.max_tokens
            )
        if (parameters.doc_stride or 0) > max_seq_len:
            raise _invalid("doc_stride", "doc_stride exceeds max_seq_len.", max_seq_len)
        return max_seq_len

    def _window_size(
        self, sample: LocatedSample, question: TokenizedText, context: TokenizedText, max_tokens: int
    ) -> int:
        """Returns the number of context tokens in a window, once both texts are known to have content."""
        if not sample.question.strip() or not len(question):
            raise tasks.empty_input(sample.question_at)
        if not sample.context.strip() or not len(context):
            raise tasks.empty_input(sample.context_at)
        size = self.tokenizer.max_context_tokens(question, max_tokens)
        if size < 1:
            limit = max_tokens - self.tokenizer.special_count(pair=True) - 1
            detail = f"The question has more than {limit} tokens. Shorten it."
            raise tasks.input_too_long(sample.question_at, detail, limit)
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
                raise tasks.input_too_long(pointer, detail, MAX_CHARACTERS)
        return dict(zip(places, self.tokenizer.tokenize(list(places)), strict=True))


@dataclass(frozen=True)
class LocatedSample:
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
        each = zip(inputs if isinstance(inputs, list) else [inputs], tasks.pointers(inputs), strict=True)
        return [LocatedSample(one.question, one.context, f"{at}/question", f"{at}/context") for one, at in each]
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

    Answers with equal text are merged. The merged score is the sum, so it may exceed 1.
    """
    none = 1.0
    found: dict[str, dict[str, Any]] = {}
    # Alignment to words makes some candidates equal.
    candidates = 2 * parameters.answers + 10 if parameters.align_to_words else parameters.answers
    for window, row in windows:
        starts, ends, none_here = probabilities(window, row)
        none = min(none, none_here)
        spans = window.word_spans if parameters.align_to_words else window.token_spans
        for first, last, score in best_spans(starts, ends, candidates, parameters.max_answer_len):
            start, end = int(spans[first, 0]), int(spans[last, 1])
            text = context[start:end]
            merged = found.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
            merged["score"] += score
    ranked = list(found.values())
    if parameters.handle_impossible_answer:
        ranked.append({"score": none, "start": 0, "end": 0, "answer": ""})
    return sorted(ranked, key=lambda answer: answer["score"], reverse=True)[: parameters.answers]


def probabilities(window: Window, row: Row) -> tuple[Floats, Floats, float]:
    """Returns the probabilities that the answer starts, and ends, at each context token, and that there is none."""
    stop = window.context_start + len(window.token_spans)
    logits = np.concatenate([row[:1], row[window.context_start : stop]]).astype(np.float64)  # token 0: no answer
    starts, ends = softmax(logits.T)
    return starts[1:], ends[1:], float(starts[0] * ends[0])


def best_spans(starts: Floats, ends: Floats, count: int, longest: int) -> Iterator[tuple[int, int, float]]:
    """Yields the `count` best spans of at most `longest` tokens, best first: first token, last token, score."""
    tokens, longest = len(starts), min(longest, len(starts))
    padded = np.concatenate([ends, np.full(longest - 1, -1.0)])
    scores = starts[:, None] * np.lib.stride_tricks.sliding_window_view(padded, longest)  # (first token, length - 1)
    scores[np.arange(tokens)[:, None] + np.arange(longest) >= tokens] = -1.0
    flat = scores.ravel()
    threshold = np.partition(flat, -count)[-count] if count < len(flat) else 0.0
    candidates = np.flatnonzero((flat >= threshold) & (flat >= 0))
    for index in candidates[np.argsort(-flat[candidates], kind="stable")][:count]:
        first, length = divmod(int(index), longest)
        yield first, first + length, float(flat[index])


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


class Evaluator(tasks.Evaluator):
    """Measures F1 and exact match on a file in SQuAD's format.

    If some questions have no answer, the empty answer is allowed, and questions with and without an answer are also
    scored separately. The upper bounds then are the scores at the best threshold for "no answer", as in the official
    script of SQuAD 2.0. That threshold is chosen on the questions that it is scored on.
    """

    def __init__(self, task: Qa):
        self._task = task

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        questions = datasets.questions(data)[skip:stop]
        some_impossible = not all(question.answers for question in questions)
        return (_case(question, some_impossible) for question in questions)

    def task(self, cases: Sequence[Case]) -> Any:
        return QaWithMargin(self._task.tokenizer, self._task.max_tokens) if _some_impossible(cases) else None

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        if _some_impossible(cases):
            possible = [float(bool(case.expected)) for case in cases]
            return {
                "always no answer": metrics.mean([1 - one for one in possible]),
                "always an answer, and the right one if there is one": metrics.mean(possible),
            }
        sentences = [re.split(r"(?<=[.!?])\s", case.body["inputs"]["context"], maxsplit=1)[0] for case in cases]
        scores = [metrics.answer_f1(text, case.expected) for text, case in zip(sentences, cases, strict=True)]
        return {"always the first sentence": metrics.mean(scores)}

    def best(self, response: Any) -> str:
        return str(response["answer"])

    def upper_bounds(self, cases: Sequence[Case], responses: Sequence[Any]) -> dict[str, Threshold]:
        if not _some_impossible(cases):
            return {}
        margins, possible = [one["margin"] for one in responses], [bool(case.expected) for case in cases]
        best = [(one["best"], case.expected) for one, case in zip(responses, cases, strict=True)]
        return {
            f"best_{name}": metrics.best_threshold(margins, [score(*pair) for pair in best], possible)
            for name, score in (("f1", metrics.answer_f1), ("exact_match", metrics.exact_match))
        }


class QaWithMargin(Qa):
    """A task whose responses also hold the best answer that is not empty, and log(p(no answer) / p(best answer))."""

    def decode(self, request: QaRequest, encodings: Sequence[Window], rows: Sequence[Row]) -> object:
        """Returns the served response to one question, with the fields `best` and `margin`."""
        served: Any = super().decode(request, encodings, rows)
        parameters = (request.parameters or QaParameters()).model_copy(update={"handle_impossible_answer": False})
        best: Any = super().decode(request.model_copy(update={"parameters": parameters}), encodings, rows)
        none = min(probabilities(window, row)[2] for window, row in zip(encodings, rows, strict=True))
        smallest = sys.float_info.min  # a softmax may underflow to 0
        margin = math.log(max(none, smallest)) - math.log(max(best["score"], smallest))
        return served | {"best": best["answer"], "margin": margin}


def _some_impossible(cases: Sequence[Case]) -> bool:
    return not all(case.expected for case in cases)


def _case(question: datasets.Question, some_impossible: bool) -> Case:
    def grade(response: Any) -> list[Grade]:
        text, answers = response["answer"], question.answers
        scores = {"f1": metrics.answer_f1(text, answers), "exact_match": metrics.exact_match(text, answers)}
        if some_impossible:
            kind = "has_answer" if answers else "no_answer"
            scores |= {f"{kind}_{name}": score for name, score in scores.items()}
        return [Grade(scores, (response["start"], response["end"]))]

    inputs = {"question": question.question, "context": question.context}
    return Case(
        {"inputs": inputs, "parameters": {"handle_impossible_answer": some_impossible}}, question.answers, grade
    )


TASK: Final = Qa
