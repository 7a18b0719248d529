"""Measures a model as it is served: every example of a data file takes the path of a request.

The evaluator of a task reads its data format and grades its answers.
"""

from __future__ import annotations

import asyncio
import json
import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from swiftlet_models import metrics
from swiftlet_models.artifact import Artifact, open_artifact, seal
from swiftlet_models.datasets import DatasetError
from swiftlet_models.encodings import Encoding
from swiftlet_models.metrics import Score, Threshold
from swiftlet_serve import evaluation
from swiftlet_serve.errors import SetupError, Unprocessable
from swiftlet_serve.inference.ensemble import EnsembleModel
from swiftlet_serve.inference.loading import LoadedModel, OpenModel
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings

TIMEOUT_S: Final = 24 * 3600.0
CONCURRENCY: Final = 16  # requests in flight, enough to fill batches

Progress = Callable[[int, int], None]
"""Called with the number of finished requests and their total."""


@dataclass(frozen=True)
class Evaluation:
    """The results of a model on a data file."""

    scores: dict[str, Score]  # by name, the main score first
    answers: tuple[Any, ...]
    marks: tuple[float, ...]  # the main score of each answer, from 0 to 1
    baselines: dict[str, Score]  # the main scores of trivial strategies
    upper_bounds: dict[str, Threshold] = field(default_factory=dict)  # scores at the best "no answer" threshold
    agree: Callable[[Any, Any], float] = operator.eq  # how far two answers agree, from 0 to 1
    min_agreement: float = 0.0  # of int8 with fp32, in percent
    compared: str = "answers"  # what agrees

    @property
    def main(self) -> Score:
        """The score that decides whether a model is good enough."""
        return next(iter(self.scores.values()))


@dataclass(frozen=True)
class Measure:
    """The part of a data file that a release is measured on."""

    data: Path
    limit: int | None = None
    skip: int = 0


def evaluate(
    model: LoadedModel | EnsembleModel,
    data: Path,
    *,
    limit: int | None = None,
    skip: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Measures a model or an ensemble of loaded models on a data file, and closes it.

    `skip` and `limit` count examples of the file (documents, for fill-mask).

    Raises:
        DatasetError: the file is not in the format of the model's task, or holds no example.
    """
    evaluator = evaluation.create(model.task_name, model.task)
    cases = list(evaluator.cases(data, skip, None if limit is None else skip + limit))
    if not cases:
        raise DatasetError(f"{data.name} holds no example to measure on.")
    model = replace(model, task=evaluator.task(cases) or model.task)
    responses = respond_to_examples(model, [case.body for case in cases], data, progress)
    grades = evaluator.grades(cases, responses)
    names = list(dict.fromkeys(name for grade in grades for name in grade.scores))
    means = {name: metrics.mean([grade.scores[name] for grade in grades if name in grade.scores]) for name in names}
    answers = tuple(grade.answer for grade in grades)
    return Evaluation(
        scores=means | evaluator.scores(cases, answers),
        answers=answers,
        marks=tuple(grade.scores[names[0]] for grade in grades),
        baselines=evaluator.baselines(cases),
        upper_bounds=evaluator.upper_bounds(cases, responses),
        agree=evaluator.agree,
        min_agreement=evaluator.min_agreement,
        compared=evaluator.compared,
    )


def encodings(model: OpenModel, data: Path, limit: int) -> list[Encoding]:
    """Returns the sequences of the first requests that an evaluation on a data file sends.

    Raises:
        DatasetError: the file is not in the format of the model's task.
    """
    cases = islice(evaluation.create(model.task_name, model.task).cases(data, 0, limit), limit)
    requests = [model.task.Request.model_validate(case.body) for case in cases]
    return [encoding for request in requests for encoding in model.task.encode(request)]


def respond_to_examples(
    model: LoadedModel | EnsembleModel,
    bodies: Sequence[dict[str, Any]],
    data: Path,
    progress: Progress | None = None,
) -> list[Any]:
    """Returns the responses to the requests of a data file's examples, in order, and closes the model.

    Raises:
        DatasetError: a request is invalid.
    """
    try:
        return asyncio.run(_send(model, bodies, progress))
    except (Unprocessable, ValidationError) as error:
        reason = error.detail if isinstance(error, Unprocessable) else "It is not a valid request."
        raise DatasetError(f"{data.name} holds an example that cannot be answered: {reason}") from None


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Returns an evaluation as recorded in the card. An infinite threshold becomes null, which JSON can express."""
    scores: dict[str, Any] = {
        "scores": {name: asdict(score) for name, score in evaluation.scores.items()},
        "trivial": {name: asdict(score) for name, score in evaluation.baselines.items()},
    }
    bounds = {
        name: {"score": bound.score, "threshold": None if math.isinf(bound.value) else bound.value}
        for name, bound in evaluation.upper_bounds.items()
    }
    return scores | ({"upper_bounds": bounds} if bounds else {})


def record(model: OpenModel, data: Path, result: Evaluation, *, limit: int | None = None, skip: int = 0) -> Artifact:
    """Adds a model's scores on a data file to the card of its artifact, beside the scores of its release.

    They replace earlier scores of the same task on the same file. Scores of other precisions and engines stay.

    Raises:
        ArtifactError: the artifact is invalid.
    """
    artifact = open_artifact(model.artifact.path)
    part = {"task": model.task_name, "engine": model.engine_name, "skip": skip, "limit": limit}
    name = data.name if model.task_name == artifact.manifest.task else f"{data.name}, {model.task_name}"
    card = artifact.card()
    also = card.get("also", {})
    also |= {name: also.get(name, {}) | summary(result) | part}
    return seal(artifact.path, artifact.manifest, card | {"also": also})


def ask(model: LoadedModel, inputs: Sequence[Any]) -> list[str]:
    """Returns the model's best answer to each input, and closes the model."""
    responses = respond(model, [{"inputs": value} for value in inputs])
    return [evaluation.create(model.task_name, model.task).best(response) for response in responses]


def find_nearest(model: LoadedModel, cases: Sequence[tuple[Any, Sequence[str]]]) -> list[str]:
    """Returns the text of each case that is nearest to its query, and closes the embedding model."""
    bodies = [{"inputs": {"query": query, "texts": list(texts)}} for query, texts in cases]
    responses = respond(model.for_task("rerank"), bodies)
    return [texts[response[0]["index"]] for response, (_, texts) in zip(responses, cases, strict=True)]


def respond(model: LoadedModel, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """Returns the responses to requests, in order, and closes the model.

    Raises:
        SwiftletError, ValidationError: a request is invalid.
    """
    return asyncio.run(_send(model, bodies, None))


def agreement(first: Evaluation, second: Evaluation) -> Score:
    """Returns how often two models gave the same answer, or for embeddings how similar their vectors are.

    Raises:
        SetupError: the two evaluations asked different questions, as for fill-mask models of different vocabularies.
    """
    _check_comparable(first, second)
    return metrics.mean([float(first.agree(a, b)) for a, b in zip(first.answers, second.answers, strict=True)])


def difference(first: Evaluation, second: Evaluation) -> Score:
    """Returns the difference of the main scores in points, with the interval for paired cases.

    Raises:
        SetupError: the two evaluations asked different questions.
    """
    _check_comparable(first, second)
    return metrics.difference(first.marks, second.marks)


def _check_comparable(first: Evaluation, second: Evaluation) -> None:
    if len(first.answers) != len(second.answers):
        raise SetupError("The two models were asked different questions, so their answers cannot be compared.")


async def _send(
    model: LoadedModel | EnsembleModel, bodies: Sequence[dict[str, Any]], progress: Progress | None
) -> list[Any]:
    """Sends requests through a pipeline, and closes the model. Returns the responses in order."""
    name = model.manifest.name
    ensembles = {name: model.words} if isinstance(model, EnsembleModel) else {}
    members = model.members if isinstance(model, EnsembleModel) else [model]
    loaded = [member for member in members if isinstance(member, LoadedModel)]
    # Not with the settings of a server, in the environment.
    runtime = LocalRuntime.of(Settings.model_construct(ensembles=ensembles), loaded)
    pipeline = runtime.pipelines[name]
    slots = asyncio.Semaphore(CONCURRENCY)
    done = 0

    async def send(body: dict[str, Any]) -> Any:
        nonlocal done
        async with slots:
            request = model.task.Request.model_validate_json(json.dumps(body))  # as strict as over HTTP
            response = await pipeline.answer(request, time.monotonic() + TIMEOUT_S)
        done += 1
        if progress is not None:
            progress(done, len(bodies))
        return response

    try:
        return await asyncio.gather(*(send(body) for body in bodies))
    finally:
        await runtime.close()
