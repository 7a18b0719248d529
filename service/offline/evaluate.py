"""How good a model is as it is served: every example of a data file goes the way a request goes.

classify wants tab-separated texts with labels, qa a file in SQuAD's format, fill-mask running text. Where there are two
labels, the Matthews correlation and the F1 of label 1 stand beside accuracy. Where some questions have no answer, the
empty answer may win, and the questions with an answer and those without are also scored by themselves. As SQuAD 2.0's
official script does, it is then told what the best threshold for "no answer" would reach: an upper bound, since that
is chosen on the very questions it is scored on. Of running text as many words as make 15 % of its tokens are masked,
chosen once and for all among words that are one token; right is the token that was there.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from swiftlet_serve.models import datasets, metrics
from swiftlet_serve.models.artifact import TOKENIZER, Manifest
from swiftlet_serve.models.datasets import DatasetError
from swiftlet_serve.models.metrics import Score, Threshold
from swiftlet_serve.models.tokenizer import Encoding, Tokenizer, Window
from swiftlet_serve.service.errors import SetupError, Unprocessable
from swiftlet_serve.service.loading import LoadedModel, ServedModel
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.tasks import qa
from swiftlet_serve.service.types import Row, Task

PATIENCE_S: Final = 24 * 3600.0
IN_FLIGHT: Final = 16  # requests: enough to fill batches
MASKED_SHARE: Final = 0.15
PARAGRAPH: Final = range(200, 1200)  # characters of a paragraph that is masked
MAX_MASKS: Final = 24  # in one paragraph

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What came out: the scores by name, the most telling first, and what was answered to each case."""

    scores: dict[str, Score]
    answers: tuple[Any, ...]
    marks: tuple[float, ...]  # of each answer, in the main score: 0 to 1
    trivial: dict[str, Score]  # the main score of answers that take no model, by what they are
    # What scores would be at the best threshold for "no answer", chosen with hindsight; 0 is the one that is served.
    upper_bounds: dict[str, Threshold] = field(default_factory=dict)

    @property
    def main(self) -> Score:
        """The score that decides."""
        return next(iter(self.scores.values()))


@dataclass(frozen=True)
class _Case:
    """A request body, what is right, and how its answer is marked: 0 to 1 for each score, and what to compare by."""

    body: dict[str, Any]
    right: tuple[Any, ...]
    mark: Callable[[Any], list[tuple[dict[str, float], Any]]]


def evaluate(
    model: LoadedModel, data: Path, *, limit: int | None = None, skip: int = 0, progress: Progress | None = None
) -> Evaluation:
    """Measures a model on a data file, and closes it.

    skip and limit count examples of the file (documents, for fill-mask).

    Raises:
        DatasetError: the file is not one that this model's task is measured on.
    """
    stop = None if limit is None else skip + limit
    cases = list(_CASES[model.manifest.task](model, data, skip, stop))
    if not cases:
        raise DatasetError(f"{data.name} holds no example to measure on.")
    some_impossible = _some_impossible(model.manifest, cases)
    try:
        asked = replace(model, task=_Weighing(model.task)) if some_impossible else model
        answers = asyncio.run(_ask(asked, [case.body for case in cases], progress))
    except (Unprocessable, ValidationError) as error:
        why = error.detail if isinstance(error, Unprocessable) else "It is no valid request."
        raise DatasetError(f"{data.name} holds an example that cannot be answered: {why}") from None
    marks = [mark for case, answer in zip(cases, answers, strict=True) for mark in case.mark(answer)]
    names = dict.fromkeys(name for values, _ in marks for name in values)
    scores = {name: metrics.mean([values[name] for values, _ in marks if name in values]) for name in names}
    found = tuple(answer for _, answer in marks)
    if len(model.manifest.labels) == 2:
        scores |= _of_two(model.manifest.labels, found, cases)
    bounds = _upper_bounds(cases, answers) if some_impossible else {}
    main = tuple(values[next(iter(names))] for values, _ in marks)
    return Evaluation(scores, found, main, _trivial(model.manifest, cases), bounds)


def encodings(model: ServedModel, data: Path, limit: int) -> list[Encoding]:
    """What the first requests that a model is measured with on a data file are made into.

    Raises:
        DatasetError: the file is not one that this model's task is measured on.
    """
    cases = islice(_CASES[model.manifest.task](model, data, 0, limit), limit)
    requests = [model.task.Request.model_validate(case.body) for case in cases]
    return [encoding for request in requests for encoding in model.task.encode(request)]


def ask(model: LoadedModel, inputs: Sequence[Any]) -> list[str]:
    """The first label, answer or word that a model gives to each of these, which are as a request has them.

    The model is closed.
    """
    answers = asyncio.run(_ask(model, [{"inputs": one} for one in inputs], None))
    return [_FIRST[model.manifest.task](answer) for answer in answers]


def agreement(one: Evaluation, other: Evaluation) -> Score:
    """How often two models gave the same answer.

    Raises:
        SetupError: they were not asked the same, as fill-mask models of different vocabularies are not.
    """
    _check_same(one, other)
    return metrics.mean([float(a == b) for a, b in zip(one.answers, other.answers, strict=True)])


def difference(one: Evaluation, other: Evaluation) -> Score:
    """By how many points the one is better in the main score, with the interval of paired cases.

    Raises:
        SetupError: as `agreement`.
    """
    _check_same(one, other)
    return metrics.difference(one.marks, other.marks)


def _check_same(one: Evaluation, other: Evaluation) -> None:
    if len(one.answers) != len(other.answers):
        raise SetupError("The two models were not asked the same, so their answers cannot be compared.")


async def _ask(model: LoadedModel, bodies: Sequence[dict[str, Any]], progress: Progress | None) -> list[Any]:
    runtime = Runtime.of(Settings(), [model])
    (pipeline,) = runtime.pipelines.values()
    places = asyncio.Semaphore(IN_FLIGHT)
    done = 0

    async def ask(body: dict[str, Any]) -> Any:
        nonlocal done
        async with places:
            request = model.task.Request.model_validate_json(json.dumps(body))  # as strict as with any caller
            answer = await pipeline.answer(request, time.monotonic() + PATIENCE_S)
        done += 1
        if progress is not None:
            progress(done, len(bodies))
        return answer

    try:
        return await asyncio.gather(*(ask(body) for body in bodies))
    finally:
        await runtime.close()


def _of_two(labels: Sequence[str], found: Sequence[str], cases: Sequence[_Case]) -> dict[str, Score]:
    predicted = [labels.index(label) for label in found]
    actual = [labels.index(label) for case in cases for label in case.right]
    return {"matthews": metrics.matthews(predicted, actual), "label_1_f1": metrics.f1(predicted, actual)}


def _some_impossible(manifest: Manifest, cases: Sequence[_Case]) -> bool:
    return manifest.task == "qa" and not all(case.right for case in cases)


class _Weighing:
    """A qa task whose answers say how "no answer" compares with the best answer, beside what is served."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self._task = task
        self.Request, self.Response = task.Request, task.Response
        self.encode, self.split, self.single = task.encode, task.split, task.single

    def decode(self, request: qa.QaRequest, encodings: Sequence[Window], rows: Sequence[Row]) -> object:
        """The served answer, `best`, which is not empty, and `difference`: the log of how much likelier none is."""
        served: Any = self._task.decode(request, encodings, rows)
        parameters = (request.parameters or qa.QaParameters()).model_copy(update={"handle_impossible_answer": False})
        best: Any = self._task.decode(request.model_copy(update={"parameters": parameters}), encodings, rows)
        none = min(qa.probabilities(window, row)[2] for window, row in zip(encodings, rows, strict=True))
        least = sys.float_info.min  # softmax may come to nothing
        difference = math.log(max(none, least)) - math.log(max(best["score"], least))
        return served | {"best": best["answer"], "difference": difference}


def _upper_bounds(cases: Sequence[_Case], answers: Sequence[Any]) -> dict[str, Threshold]:
    differences = [answer["difference"] for answer in answers]
    kinds = {"best_f1": metrics.answer_f1, "best_exact_match": metrics.exact_match}
    return {
        name: metrics.best_threshold(
            differences,
            [score(answer["best"], case.right) for answer, case in zip(answers, cases, strict=True)],
            [bool(case.right) for case in cases],
        )
        for name, score in kinds.items()
    }


def _trivial(manifest: Manifest, cases: Sequence[_Case]) -> dict[str, Score]:
    if _some_impossible(manifest, cases):
        # What answers every question cannot do better than this, whichever answers it gives.
        return {
            "always no answer": metrics.mean([float(not case.right) for case in cases]),
            "always an answer, and the right one if there is one": metrics.mean([float(bool(c.right)) for c in cases]),
        }
    if manifest.task == "qa":
        first = [re.split(r"(?<=[.!?])\s", case.body["inputs"]["context"], maxsplit=1)[0] for case in cases]
        f1 = metrics.mean([metrics.answer_f1(text, case.right) for text, case in zip(first, cases, strict=True)])
        return {"always the first sentence": f1}
    right = [one for case in cases for one in case.right]
    ((commonest, _),) = Counter(right).most_common(1)
    kind = "label" if manifest.task == "classify" else "token"
    return {f"always the commonest {kind}": metrics.mean([float(one == commonest) for one in right])}


def _classify(model: ServedModel, data: Path, skip: int, stop: int | None) -> Iterable[_Case]:
    labels = model.manifest.labels
    for example in datasets.labelled(data)[skip:stop]:
        if example.label >= len(labels):
            raise DatasetError(f"{data.name} has a label {example.label}, and the model has {len(labels)}.")
        if not example.text.strip():
            continue
        wanted = labels[example.label]

        def mark(answer: Any, wanted: str = wanted) -> list[tuple[dict[str, float], Any]]:
            best = answer[0][0]["label"]
            return [({"accuracy": float(best == wanted)}, best)]

        yield _Case({"inputs": example.text, "parameters": {"top_k": 1}}, (wanted,), mark)


def _qa(model: ServedModel, data: Path, skip: int, stop: int | None) -> Iterable[_Case]:  # noqa: ARG001
    questions = datasets.questions(data)[skip:stop]
    some_impossible = any(not question.answers for question in questions)
    for question in questions:

        def mark(answer: Any, answers: tuple[str, ...] = question.answers) -> list[tuple[dict[str, float], Any]]:
            text = answer["answer"]
            values = {"f1": metrics.answer_f1(text, answers), "exact_match": metrics.exact_match(text, answers)}
            if some_impossible:
                kind = "has_answer" if answers else "no_answer"
                values |= {f"{kind}_{name}": value for name, value in values.items()}
            return [(values, (answer["start"], answer["end"]))]

        inputs = {"question": question.question, "context": question.context}
        parameters = {"handle_impossible_answer": some_impossible}
        yield _Case({"inputs": inputs, "parameters": parameters}, question.answers, mark)


def _fill_mask(model: ServedModel, data: Path, skip: int, stop: int | None) -> Iterable[_Case]:
    tokenizer = Tokenizer.load(model.artifact.file(TOKENIZER))
    for number, document in enumerate(islice(datasets.documents(data), skip, stop)):
        paragraphs = [text for text in document.split("\n") if len(text) in PARAGRAPH]
        for text in paragraphs[:3]:
            yield from _mask(tokenizer, model.manifest, text, random.Random(number))  # noqa: S311  # no secret


def _mask(tokenizer: Tokenizer, manifest: Manifest, text: str, chance: random.Random) -> Iterable[_Case]:
    (reading,) = tokenizer.tokenize([text])
    fits = len(reading) + tokenizer.special_count(pair=False) <= manifest.max_tokens
    assert tokenizer.mask is not None  # noqa: S101  # a fill-mask model has one
    pieces = np.bincount(reading.word_ids)
    whole = [
        i
        for i, (word, (start, end)) in enumerate(zip(reading.word_ids, reading.offsets, strict=True))
        if pieces[word] == 1 and text[start:end].strip().isalnum()  # unigram pieces take the blank before them along
    ]
    chosen = sorted(chance.sample(whole, min(MAX_MASKS, round(MASKED_SHARE * len(reading)), len(whole))))
    if not chosen or not fits or tokenizer.mask in text:
        return
    parts, at = [], 0
    for i in chosen:
        start, end = reading.offsets[i]
        parts += [text[at:start], tokenizer.mask]
        at = end
    wanted = [int(reading.ids[i]) for i in chosen]

    def mark(answer: Any) -> list[tuple[dict[str, float], Any]]:
        tops = [answer[0]] if len(wanted) == 1 else [candidates[0] for candidates in answer]
        found = [top["token"] for top in tops]
        return [({"top_1": float(f == w)}, f) for f, w in zip(found, wanted, strict=True)]

    yield _Case({"inputs": "".join([*parts, text[at:]]), "parameters": {"top_k": 1}}, tuple(wanted), mark)


_CASES: Final = {"classify": _classify, "qa": _qa, "fill-mask": _fill_mask}
_FIRST: Final[dict[str, Callable[[Any], str]]] = {
    "classify": lambda answer: str(answer[0][0]["label"]),
    "qa": lambda answer: str(answer["answer"]),
    "fill-mask": lambda answer: str(answer[0]["token_str"]),
}
