"""Calibrates a model for decisions: fits the temperature that makes its probabilities match frequencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from swiftlet_serve.models import calibration
from swiftlet_serve.models.artifact import Artifact, Decisions, open_artifact, seal
from swiftlet_serve.models.datasets import DatasetError
from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.loading import LoadedModel
from swiftlet_serve.service.offline.evaluate import respond
from swiftlet_serve.service.tasks import Case

LEAST: Final = 20  # cases that each half needs: a bin of the error then has one or two
DIGITS: Final = 4

LogOdds = Mapping[str, float]
"""The log-odds of each label, whose softmax is its probability."""


@dataclass(frozen=True)
class Calibration:
    """A temperature, and the expected calibration error with it and without it, from 0 to 1."""

    data: str  # the file and its folder
    fitted_on: int  # cases
    measured_on: int  # other cases
    temperature: float
    raw_error: float
    calibrated_error: float


def calibrate(model: LoadedModel, data: Path, *, limit: int | None = None) -> Calibration:
    """Fits the temperature on every other example of a data file, measures on the rest, and closes the model.

    Raises:
        DatasetError: the file is not in the format of the model's task, or has too few examples.
        SetupError: the model's task has no probabilities of labels.
    """
    if model.task_name not in READERS:
        others = [task for task in model.task_names if task in READERS]
        advice = f"Name --task {others[0]}." if others else "Calibrate a classifier."
        raise SetupError(f"The task {model.task_name} has no probabilities of labels. {advice}")
    if model.manifest.embedding is None and model.manifest.problem != "single_label":
        raise SetupError("Only models whose labels exclude each other can be calibrated.")
    parameters, read = READERS[model.task_name]
    cases = list(tasks.load(model.task_name).Evaluator(model.task).cases(data, 0, limit))
    if len(cases) < 2 * LEAST:
        raise DatasetError(f"{data.name} has {len(cases)} examples. Calibration needs at least {2 * LEAST}.")
    found = [read(response) for response in respond(model, [_body(case, parameters) for case in cases])]
    rows = [list(each.values()) for each in found]
    right = [list(each).index(case.expected[0]) for each, case in zip(found, cases, strict=True)]
    temperature = round(calibration.fit_temperature(rows[::2], right[::2]), DIGITS)
    return Calibration(
        data=f"{data.resolve().parent.name}/{data.name}",
        fitted_on=len(rows[::2]),
        measured_on=len(rows[1::2]),
        temperature=temperature,
        raw_error=round(_error(rows[1::2], right[1::2], 1.0), DIGITS),
        calibrated_error=round(_error(rows[1::2], right[1::2], temperature), DIGITS),
    )


def record(
    path: Path, found: Calibration, predicates: Mapping[str, str], scores: Mapping[str, Sequence[str]]
) -> Artifact:
    """Writes the temperature, and the labels that answer predicates and scores, to the artifact in `path`.

    Raises:
        SetupError: a label is not one of the model's.
        ArtifactError: the artifact is invalid.
    """
    artifact = open_artifact(path)
    labels = set(artifact.manifest.labels)
    if not labels.issuperset((*predicates.values(), *(label for levels in scores.values() for label in levels))):
        raise SetupError(f"The labels of the model are {', '.join(artifact.manifest.labels)}.")
    before = artifact.manifest.decisions or Decisions()
    decisions = Decisions(
        temperature=found.temperature,
        predicates={**before.predicates, **predicates},
        scores={**before.scores, **scores},
    )
    return seal(path, replace(artifact.manifest, decisions=decisions), artifact.card() | {"calibration": asdict(found)})


def _classified(response: Any) -> LogOdds:
    return {one["label"]: one["score"] for one in response[0]}


def _zero_shot(response: Any) -> LogOdds:
    return {one["label"]: calibration.log_odds(one["score"]) for one in response}


READERS: Final[Mapping[str, tuple[Mapping[str, Any], Callable[[Any], LogOdds]]]] = {
    "classify": ({"function_to_apply": "none", "top_k": None}, _classified),
    "zero-shot": ({"multi_label": True}, _zero_shot),
}
"""By task: the parameters that the requests of its evaluation get, and how log-odds are read from an answer."""


def _body(case: Case, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {**case.body, "parameters": {**case.body.get("parameters", {}), **parameters}}


def _error(rows: Sequence[Sequence[float]], right: Sequence[int], temperature: float) -> float:
    probabilities = [calibration.softmax(row, temperature) for row in rows]
    correct = [int(row.argmax()) == label for row, label in zip(probabilities, right, strict=True)]
    return calibration.expected_calibration_error([float(row.max()) for row in probabilities], correct)
