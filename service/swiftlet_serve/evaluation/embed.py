"""Spearman's correlation of the cosine of two texts with the similarity that people gave them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import datasets, metrics
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade
from swiftlet_serve.tasks.embed import cosine


class Evaluator(evaluation.Evaluator):
    """Grades a pair of texts with its share of the correlation. Skips pairs with a blank text."""

    min_agreement, compared = 99.0, "cosine"
    golden_inputs = (
        "A man is playing a guitar.",
        "no",
        "The ferry leaves at a quarter past six, and the last bus back to the harbour waits for its passengers.",
        "Where can I renew my passport? I moved last year; the old office was closed in March 🛂.",
        "서울의 봄은 짧지만 아름답다.",
        "Ünïcödé, naïve café, e\u0301 and ﬁ: the tokenizer must keep its footing.",
    )

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        for pair in datasets.similar(data)[skip:stop]:
            if pair.first.strip() and pair.second.strip():
                yield Case({"inputs": [pair.first, pair.second]}, (pair.score,), lambda _: [])  # needs all answers

    def grades(self, cases: Sequence[Case], responses: Sequence[Any]) -> list[Grade]:
        vectors = [np.array(response, np.float32) for response in responses]  # (2, D)
        parts = metrics.spearman_parts(*_compared(cases, vectors))
        return [Grade({"spearman": part}, pair) for part, pair in zip(parts, vectors, strict=True)]

    def scores(self, cases: Sequence[Case], answers: Sequence[Any]) -> dict[str, Score]:
        """Returns the correlation, which has another interval than a mean."""
        return {"spearman": metrics.spearman(*_compared(cases, answers))}

    def agree(self, answer: Any, second: Any) -> float:
        """Returns the mean cosine of the vectors of both texts."""
        return float(np.mean([cosine(a, b) for a, b in zip(answer, second, strict=True)]))

    def agreement(self, responses: Sequence[Any], others: Sequence[Any]) -> Score | None:
        """Returns how often the same one of the other texts is nearest to a text; None for a single text."""
        nearest, same = (_nearest([response[0] for response in model]) for model in (responses, others))
        return metrics.share(int((nearest == same).sum()), len(nearest)) if len(nearest) > 1 else None

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        """Returns the score of the words that two texts share (Jaccard)."""
        words = [[set(text.lower().split()) for text in case.body["inputs"]] for case in cases]
        shared = [len(a & b) / len(a | b) for a, b in words]
        return {"words in common": metrics.spearman(shared, [case.expected[0] for case in cases])}

    def best(self, response: Any) -> str:
        return " ".join(f"{number:.3f}" for number in itertools.islice(response[0], 3))


def _nearest(vectors: Sequence[Any]) -> NDArray[np.int64]:
    """Returns the number of the text whose vector has the largest cosine with that of each text, (N,)."""
    matrix = np.array(vectors, np.float64)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    cosines = matrix @ matrix.T
    np.fill_diagonal(cosines, -np.inf)
    return np.asarray(cosines.argmax(axis=1))


def _compared(cases: Sequence[Case], vectors: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Returns the cosines of pairs of vectors, (2, D), and the similarities that people gave the texts."""
    return [cosine(*pair) for pair in vectors], [case.expected[0] for case in cases]
