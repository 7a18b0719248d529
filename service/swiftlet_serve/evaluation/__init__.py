"""The evaluators, one module for each task: they measure its models on a data file. Serving imports none of them.

The class `Evaluator` of `evaluation/fill_mask.py` measures the task of `tasks/fill_mask.py`. It also holds the requests
whose answers an artifact records. A task without such a module can be served, and neither measured nor released.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from swiftlet_models import metrics
from swiftlet_models.datasets import Unlabelled
from swiftlet_models.metrics import Score, Threshold
from swiftlet_serve import plugins
from swiftlet_serve.types import Task

BUILT_IN: Final = Path(__file__).with_name("texts.tsv")
"""Texts of our own, which a rounded network is compared with fp32 on: some in each of eight languages, and others."""


@dataclass(frozen=True)
class Grade:
    """The grade of an answer."""

    scores: Mapping[str, float]  # from 0 to 1, the main score first
    answer: Any  # compared between models to compute their agreement


@dataclass(frozen=True)
class Case:
    """A request of an evaluation, and the grading of its response."""

    body: dict[str, Any]
    expected: tuple[Any, ...]  # the right answers
    grade: Callable[[Any], list[Grade]]


class Evaluator(ABC):
    """Measures a task on a data file. `offline/evaluate.py` sends the requests and averages the grades."""

    min_agreement: ClassVar[float] = 0.0
    """The agreement of int8 with fp32 that an artifact needs to be released, in percent."""
    compared: ClassVar[str] = "answers"
    """What agrees: whether answers are equal, or for vectors their cosine."""
    golden_inputs: ClassVar[Sequence[Any]]
    """The `inputs` of the requests whose answers an artifact records: short, long, and hard to tokenise."""

    def __init__(self, task: Any) -> None:
        """Creates the evaluator of a task that `create` made."""
        self._task = task

    @abstractmethod
    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        """Reads the examples from `skip` up to `stop`, in order.

        Raises:
            DatasetError: the file is not in the format of this task.
        """

    @abstractmethod
    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        """Returns the main scores of trivial strategies, by their descriptions."""

    @abstractmethod
    def best(self, response: Any) -> str:
        """Returns the best answer of a response to one input, as text."""

    def golden_bodies(self) -> list[dict[str, Any]]:
        """Returns the requests whose answers an artifact records."""
        return [{"inputs": inputs} for inputs in self.golden_inputs]

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        """Returns requests that are made of texts without labels, in the order of the texts."""
        return [{"inputs": text.text} for text in texts]

    def agreement(self, responses: Sequence[Any], others: Sequence[Any]) -> Score | None:
        """Returns how often the best answers of two models to the same requests are equal; None if they are numbers."""
        return metrics.mean([float(self.best(a) == self.best(b)) for a, b in zip(responses, others, strict=True)])

    def grades(self, cases: Sequence[Case], responses: Sequence[Any]) -> list[Grade]:
        """Returns the grades of all answers, in order. An evaluator may grade an answer relative to the others."""
        return [grade for case, response in zip(cases, responses, strict=True) for grade in case.grade(response)]

    def agree(self, answer: Any, second: Any) -> float:
        """Returns how far two answers to the same case agree, from 0 to 1."""
        return float(answer == second)

    def task(self, cases: Sequence[Case]) -> Task[Any, Any] | None:  # noqa: ARG002  # some evaluators need the cases
        """Returns the task that answers the cases, or None for the served one."""
        return None

    def scores(self, cases: Sequence[Case], answers: Sequence[Any]) -> dict[str, Score]:  # noqa: ARG002
        """Returns scores that are not a mean over the answers."""
        return {}

    def upper_bounds(self, cases: Sequence[Case], responses: Sequence[Any]) -> dict[str, Threshold]:  # noqa: ARG002
        """Returns the scores at the best threshold for these cases. Threshold 0 is the served one."""
        return {}


def create(name: str, task: Task[Any, Any]) -> Evaluator:
    """Creates the evaluator of a task.

    Raises:
        SetupError: the task of this name has no evaluator.
    """
    evaluator: Evaluator = plugins.load(sys.modules[__name__], name.replace("-", "_")).Evaluator(task)
    return evaluator


def commonest(answers: Sequence[Hashable]) -> Score:
    """Returns the score of the answer that is right most often, given to every case."""
    ((best, _),) = Counter(answers).most_common(1)
    return metrics.mean([float(answer == best) for answer in answers])
