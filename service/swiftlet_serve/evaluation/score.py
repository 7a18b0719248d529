"""Probability of the tokens of running text: the geometric mean in each paragraph, averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from swiftlet_models import metrics
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade
from swiftlet_serve.evaluation._paragraphs import paragraphs
from swiftlet_serve.tasks.score import ScoreTask


class Evaluator(evaluation.Evaluator):
    """Reads documents. The golden inputs are short, because their answers hold an output for every token."""

    golden_inputs = (
        "The sun rises in the east.",
        {"prompt": "Two and two make", "continuation": " four."},
        "여름 rain",
    )
    _task: ScoreTask

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        texts = paragraphs(data, skip, stop, self._task.tokenizer, self._task.max_tokens)
        return (Case({"inputs": text}, (), _grade) for _, text, _ in texts)

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        return {"every token equally likely": metrics.mean([1 / self._task.tokenizer.vocab_size] * len(cases))}

    def agreement(self, responses: Sequence[Any], others: Sequence[Any]) -> Score | None:
        """Returns None: the answers are numbers, whose likelihoods are compared otherwise."""
        del responses, others
        return None

    def best(self, response: Any) -> str:
        return f"{response['log_likelihood']:.2f}"


def _grade(response: Any) -> list[Grade]:
    mean = response["mean"]
    return [Grade({"token_probability": math.exp(mean)}, round(mean, 1))]
