"""Calibrates a model: fits the temperature that makes its probabilities match frequencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from swiftlet_models import calibration
from swiftlet_models.artifact import Artifact, Decisions, open_artifact, seal
from swiftlet_models.calibration import Bin
from swiftlet_models.datasets import DatasetError
from swiftlet_serve import evaluation
from swiftlet_serve.errors import SetupError
from swiftlet_serve.evaluation import Case
from swiftlet_serve.inference.loading import LoadedModel
from swiftlet_serve.offline import type_fits
from swiftlet_serve.offline.evaluate import respond_to_examples
from swiftlet_serve.offline.type_fits import DIGITS, LEAST, TypeFit

LogOdds = Mapping[str, float]
"""The log-odds of each label, whose softmax is its probability."""


@dataclass(frozen=True)
class Calibration:
    """A temperature and an offset, and the expected calibration error with them and without, from 0 to 1."""

    data: str  # the file and its folder
    fitted_on: int  # cases
    measured_on: int  # other cases
    temperature: float
    offset: float  # added to the log-odds of an answer before the division; 0 for labels
    raw_error: float
    calibrated_error: float
    raw_bins: Sequence[Bin]
    calibrated_bins: Sequence[Bin]
    types: Mapping[str, TypeFit] = field(default_factory=dict)  # by the type of question, of models with labels


def calibrate(
    model: LoadedModel, data: Path, *, skip: int = 0, limit: int | None = None, precision: float | None = None
) -> Calibration:
    """Fits the temperature on every other example of a data file, measures on the rest, and closes the model.

    For question answering and fill-mask, the probability is that the best answer is right.

    Args:
        model: the model.
        data: the data file.
        skip: the examples to skip at the start.
        limit: the examples to use; None for all.
        precision: the share of right answers, from 0 to 1, that decisions are to have: others are refused. None refuses
            none.

    Raises:
        DatasetError: the file is not in the format of the model's task, or has too few examples.
        SetupError: models of this task cannot be calibrated, or not with this data, or do not reach the precision.
    """
    known = {**LABELS, **ANSWERS}
    if model.task_name not in known:
        others = [task for task in model.task_names if task in known]
        advice = f"Name --task {others[0]}." if others else f"It takes {', '.join(known)}."
        raise SetupError(f"swiftlet calibrate does not take the task {model.task_name}. {advice}")
    if model.task_name == "classify" and model.manifest.problem != "single_label":
        raise SetupError("Only models whose labels exclude each other can be calibrated.")
    evaluator = evaluation.create(model.task_name, model.task)
    cases = list(evaluator.cases(data, skip, None if limit is None else skip + limit))
    if len(cases) < 2 * LEAST:
        raise DatasetError(f"{data.name} has {len(cases)} examples. Calibration needs at least {2 * LEAST}.")
    if model.task_name in LABELS and evaluator.task(cases) is not None:
        raise SetupError(f"{data.name} holds pairs of texts and their relations. Calibration needs texts and labels.")
    if model.task_name in LABELS:
        return _calibrate_labels(model, cases, data, precision)
    if precision is not None:
        raise SetupError(f"Only decisions are refused below a precision, and the task {model.task_name} answers none.")
    return _calibrate_answers(model, cases, data)


def _calibrate_labels(model: LoadedModel, cases: Sequence[Case], data: Path, precision: float | None) -> Calibration:
    parameters, read = LABELS[model.task_name]
    responses = respond_to_examples(model, [_body(case, parameters) for case in cases], data)
    log_odds = [read(response) for response in responses]
    rows = [list(odds.values()) for odds in log_odds]
    right = [list(odds).index(case.expected[0]) for odds, case in zip(log_odds, cases, strict=True)]
    if min(map(len, rows)) < 2:
        raise DatasetError(f"{data.name} has texts with a single label. Calibration needs two to choose from.")
    temperature = round(calibration.fit_temperature(rows[::2], right[::2]), DIGITS)

    examples = type_fits.examples(rows, right)
    exclusive = model.task_name == "classify"
    types = {
        "choice": type_fits.choice(examples, temperature, precision),
        "predicate": type_fits.predicate(examples, temperature, precision, exclusive=exclusive),
    }
    sizes, choice = (len(rows[::2]), len(rows[1::2])), types["choice"]
    errors, bins = (choice.raw_error, choice.calibrated_error), (choice.raw_bins, choice.calibrated_bins)
    return Calibration(_name(data), *sizes, temperature, 0.0, *errors, *bins, types)


def _calibrate_answers(model: LoadedModel, cases: Sequence[Case], data: Path) -> Calibration:
    score, read = ANSWERS[model.task_name]
    responses = respond_to_examples(model, [case.body for case in cases], data)
    halves: tuple[list[tuple[float, bool]], ...] = ([], [])  # log-odds of an answer, and whether it is right
    for number, (case, response) in enumerate(zip(cases, responses, strict=True)):
        right = [grade.scores[score] == 1 for grade in case.grade(response)]
        halves[number % 2].extend(zip(map(calibration.log_odds, read(response)), right, strict=True))
    temperature, offset = (round(value, DIGITS) for value in calibration.fit_answers(*zip(*halves[0], strict=True)))

    def reliability(temperature: float, offset: float) -> list[Bin]:
        log_odds, right = zip(*halves[1], strict=True)
        return calibration.reliability([calibration.sigmoid(odds + offset, temperature) for odds in log_odds], right)

    sizes = len(halves[0]), len(halves[1])
    bins = reliability(1.0, 0.0), reliability(temperature, offset)
    raw_error, error = (round(calibration.expected_calibration_error(one), DIGITS) for one in bins)
    return Calibration(_name(data), *sizes, temperature, offset, raw_error, error, *bins)


def _name(data: Path) -> str:
    """Returns the name of a file and of its folder."""
    return f"{data.resolve().parent.name}/{data.name}"


def record(
    path: Path, fitted: Calibration, predicates: Mapping[str, str], scores: Mapping[str, Sequence[str]]
) -> Artifact:
    """Writes the calibration, and the labels that answer predicates and scores, to the artifact in `path`.

    The server divides log-odds of labels by the temperature. It leaves the scores of answers as they are.

    Raises:
        SetupError: a label is not one of the model's.
        ArtifactError: the artifact is invalid.
    """
    artifact = open_artifact(path)
    if artifact.manifest.task in ANSWERS and (predicates or scores):
        raise SetupError("Only classifiers answer predicates and scores.")
    labels = set(artifact.manifest.labels)
    if not labels.issuperset((*predicates.values(), *(label for levels in scores.values() for label in levels))):
        raise SetupError(f"The labels of the model are {', '.join(artifact.manifest.labels)}.")
    card = artifact.card() | {"calibration": asdict(fitted, dict_factory=_without_bins)}
    if artifact.manifest.task in ANSWERS:
        return seal(path, artifact.manifest, card)
    before = artifact.manifest.decisions or Decisions()
    decisions = Decisions(
        temperature=fitted.temperature,
        predicates={**before.predicates, **predicates},
        scores={**before.scores, **scores},
        fits={kind: one.fit for kind, one in fitted.types.items()},
    )
    return seal(path, replace(artifact.manifest, decisions=decisions), card)


def _without_bins(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields that a card holds. The bins are for pictures."""
    return {name: value for name, value in fields if not name.endswith("_bins")}


def _classified(response: Any) -> LogOdds:
    return {label["label"]: label["score"] for label in response[0]}


def _zero_shot(response: Any) -> LogOdds:
    return {label["label"]: calibration.log_odds(label["score"]) for label in response}


def _best_span(response: Any) -> list[float]:
    return [response["score"]]


def _best_tokens(response: Any) -> list[float]:
    masks = response if isinstance(response[0], list) else [response]
    return [tokens[0]["score"] for tokens in masks]


LABELS: Final[Mapping[str, tuple[Mapping[str, Any], Callable[[Any], LogOdds]]]] = {
    "classify": ({"function_to_apply": "none", "top_k": None}, _classified),
    "zero-shot": ({"multi_label": True}, _zero_shot),
}
"""By task with labels: the parameters of its requests, and how log-odds are read from a response."""

ANSWERS: Final[Mapping[str, tuple[str, Callable[[Any], list[float]]]]] = {
    "qa": ("exact_match", _best_span),
    "fill-mask": ("top_1", _best_tokens),
}
"""By task with answers: the score that says whether they are right, and how probabilities are read from a response."""


def _body(case: Case, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {**case.body, "parameters": {**case.body.get("parameters", {}), **parameters}}
