"""Spearman's correlation of the similarity of two texts with the one that people gave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import datasets, metrics
from swiftlet_models.datasets import Unlabelled
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade
from swiftlet_serve.tasks._vector_forms import Form, Sparse, read, similarity


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

    def golden_bodies(self) -> list[dict[str, Any]]:
        return [self._body(inputs) for inputs in self.golden_inputs]

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        return [self._body(text.text) for text in texts]

    def _body(self, inputs: Any) -> dict[str, Any]:
        """Returns a request for all outputs of the model, which its network computes."""
        about = self._task.embedding
        parameters: dict[str, Any] = {"output": list(about.outputs)} if len(about.outputs) > 1 else {}
        if about.sparse is not None and about.sparse.static_query:
            parameters["prompt_name"] = "document"
        return {"inputs": inputs} | ({"parameters": parameters} if parameters else {})

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        for pair in datasets.similar(data)[skip:stop]:
            if pair.first.strip() and pair.second.strip():
                yield Case({"inputs": [pair.first, pair.second]}, (pair.score,), lambda _: [])  # needs all answers

    def grades(self, cases: Sequence[Case], responses: Sequence[Any]) -> list[Grade]:
        vectors = [[read(answer) for answer in response] for response in responses]  # two of each
        parts = metrics.spearman_parts(*_compared(cases, vectors))
        return [Grade({"spearman": part}, pair) for part, pair in zip(parts, vectors, strict=True)]

    def scores(self, cases: Sequence[Case], answers: Sequence[Any]) -> dict[str, Score]:
        """Returns the correlation, which has another interval than a mean."""
        return {"spearman": metrics.spearman(*_compared(cases, answers))}

    def agree(self, answer: Any, second: Any) -> float:
        """Returns the mean similarity of what two models make of both texts."""
        return float(np.mean([similarity(a, b) for a, b in zip(answer, second, strict=True)]))

    def agreement(self, responses: Sequence[Any], others: Sequence[Any]) -> Score | None:
        """Returns how often the same one of the other texts is nearest to a text; None for a single text."""
        nearest, same = (_nearest([read(response[0]) for response in model]) for model in (responses, others))
        return metrics.share(int((nearest == same).sum()), len(nearest)) if len(nearest) > 1 else None

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        """Returns the score of the words that two texts share (Jaccard)."""
        words = [[set(text.lower().split()) for text in case.body["inputs"]] for case in cases]
        shared = [len(a & b) / len(a | b) for a, b in words]
        return {"words in common": metrics.spearman(shared, [case.expected[0] for case in cases])}

    def best(self, response: Any) -> str:
        first = read(response[0])
        numbers = first.ids[:3].tolist() if isinstance(first, Sparse) else first.ravel()[:3].tolist()
        return " ".join(f"{number:.3f}" for number in numbers)


def _nearest(forms: Sequence[Form]) -> NDArray[np.int64]:
    """Returns the number of the text that is most similar to each text, (N,)."""
    first = forms[0]
    if isinstance(first, Sparse) or first.ndim == 1:
        matrix = _rows(forms)
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        similar = matrix @ matrix.T
    else:
        similar = np.array([[similarity(form, second) for second in forms] for form in forms])
    np.fill_diagonal(similar, -np.inf)
    return np.asarray(similar.argmax(axis=1))


def _rows(forms: Sequence[Any]) -> NDArray[np.float32]:
    """Returns vectors, or weights of the tokens that any text has, as rows."""
    if not isinstance(forms[0], Sparse):
        return np.array(forms, np.float32)
    used = np.unique(np.concatenate([form.ids for form in forms]))
    matrix = np.zeros((len(forms), len(used)), np.float32)
    for row, form in zip(matrix, forms, strict=True):
        row[np.searchsorted(used, form.ids)] = form.weights
    return matrix


def _compared(cases: Sequence[Case], pairs: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Returns the similarities of pairs of forms, and those that people gave the texts."""
    return [similarity(*pair) for pair in pairs], [case.expected[0] for case in cases]
