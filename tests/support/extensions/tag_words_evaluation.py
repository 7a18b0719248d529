"""The evaluator of the toy task. `tests/tasks/test_new_task.py` adds it to the service as `evaluation/tag_words.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from swiftlet_models import datasets
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade, commonest


class Evaluator(evaluation.Evaluator):
    """Measures the share of texts whose first word has the right label, on tab-separated texts with labels."""

    golden_inputs = ("Clara lives in Bern.", "no")

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        labels = self._task.labels
        return [_case(example.text, labels[example.label]) for example in datasets.labelled(data)[skip:stop]]

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        return {"always the commonest label": commonest([case.expected[0] for case in cases])}

    def best(self, response: Any) -> str:
        return str(response[0][0]["label"])


def _case(text: str, label: str) -> Case:
    def grade(response: Any) -> list[Grade]:
        best = response[0][0]["label"]
        return [Grade({"first_word_accuracy": float(best == label)}, best)]

    return Case({"inputs": text}, (label,), grade)
