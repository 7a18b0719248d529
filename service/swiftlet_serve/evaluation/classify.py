"""Accuracy of labels, on texts or pairs of texts with the names or numbers of their labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from swiftlet_models import datasets, metrics
from swiftlet_models.datasets import Labelled, Unlabelled
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade, commonest
from swiftlet_serve.tasks.classify import Classify


class Evaluator(evaluation.Evaluator):
    """Skips blank texts. A model with two labels also gets the Matthews correlation and the F1 of its second label."""

    golden_inputs = (
        "A warm, funny and clever film that never outstays its welcome.",
        "The plot makes no sense, the jokes fall flat, and it goes on for ever.",
        "no",
        "Rain fell all night on the tin roof, and by the morning the river had come up to the second step of the "
        "house.",
        "I had hoped for more; still, the last ten minutes are worth the ticket 🎬 – go and see it!",
        "서울의 봄은 짧지만 아름답다.",
        "Ünïcödé, naïve café, e\u0301 and ﬁ: the tokenizer must keep its footing.",
    )

    def __init__(self, task: Classify):
        self._labels = task.labels
        self._has_best = len(task.labels) > 1 and not task.is_regression

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        for example in datasets.labelled(data, self._labels)[skip:stop]:
            if example.text.strip():
                yield _case(example, self._labels[example.label])

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        """Returns a pair for a text with a question."""
        pairs = ({"text": text.question, "text_pair": text.text} if text.question else text.text for text in texts)
        return [{"inputs": inputs} for inputs in pairs]

    def agreement(self, responses: Sequence[Any], others: Sequence[Any]) -> Score | None:
        return super().agreement(responses, others) if self._has_best else None

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        return {"always the commonest label": commonest([case.expected[0] for case in cases])}

    def best(self, response: Any) -> str:
        return str(response[0][0]["label"])

    def scores(self, cases: Sequence[Case], answers: Sequence[Any]) -> dict[str, Score]:
        if len(self._labels) != 2:
            return {}
        predicted = [self._labels.index(label) for label in answers]
        actual = [self._labels.index(case.expected[0]) for case in cases]
        return {"matthews": metrics.matthews(predicted, actual), "label_1_f1": metrics.f1(predicted, actual)}


def _case(example: Labelled, label: str) -> Case:
    def grade(response: Any) -> list[Grade]:
        best = response[0][0]["label"]
        return [Grade({"accuracy": float(best == label)}, best)]

    text, pair = example.text, example.pair
    inputs = text if pair is None else {"text": text, "text_pair": pair}
    return Case({"inputs": inputs, "parameters": {"top_k": 1}}, (label,), grade)
