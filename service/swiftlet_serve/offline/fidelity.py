"""Fidelity: how much of the fp32 network's answers an int8 network keeps, in the terms of its task.

A vector, a sparse one or the vectors of tokens are compared by their cosine, a distribution by the probability that
both networks give to the same outcomes (1 minus the total variation distance), and a score that has no distribution by
its size. Each is 1 for equal answers.
Scale and outliers among the outputs therefore do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import metrics
from swiftlet_models.artifact import Embedding, Manifest
from swiftlet_models.metrics import Score
from swiftlet_models.probabilities import sigmoid, softmax
from swiftlet_serve.tasks._vector_forms import cosine
from swiftlet_serve.tasks.classify import default_function

LEAST: Final = {"cosine": 0.99, "probability": 0.95, "probability of words": 0.9, "score": 0.95}
"""The mean fidelity that an artifact needs, by measure. Sound int8 reaches 0.996, 0.99, 0.94 and 0.98."""

FOUND: Final = 0.5  # the probability from which a label counts

Output = NDArray[np.float32]
Outputs = Sequence[Output]
"""The outputs of a head for one sequence, (positions, width)."""


@dataclass(frozen=True)
class Fidelity:
    """The fidelity of the answers to some texts, from 0 to 1: the mean, the lowest, and the mean's 95 % interval."""

    measure: str
    mean: float
    lowest: float
    n: int
    low: float = 0.0
    high: float = 1.0

    @property
    def score(self) -> Score:
        """The mean in percent, with its interval."""
        return Score(100 * self.mean, 100 * self.low, 100 * self.high, self.n)

    @property
    def sufficient(self) -> bool:
        """Whether the mean is what an artifact needs. False if it is NaN."""
        return self.mean >= LEAST[self.measure]


def fidelity(manifest: Manifest, exact: Outputs, rounded: Outputs) -> Fidelity:
    """Compares the outputs of an fp32 network with the outputs of another one for the same sequences.

    Raises:
        ValueError: there are no sequences, or the arguments differ in length.
    """
    measure = _measure(manifest)
    return _mean(measure, [_compare(manifest, measure, *outputs) for outputs in zip(exact, rounded, strict=True)])


def of_labels(exact: Sequence[Output], rounded: Sequence[Output]) -> Fidelity:
    """Compares the probabilities that two networks give labels of the same sequences, in any shape.

    What both find improbable does not count: of the labels of all spans of a text, few are of any interest.
    """
    kept = []
    for a, b in zip(exact, rounded, strict=True):
        found = np.maximum(a, b) >= FOUND
        kept.append(1 - float(np.abs(a - b)[found].mean()) if found.any() else 1.0)
    return _mean("probability", kept)


def _mean(measure: str, kept: Sequence[float]) -> Fidelity:
    if not kept:
        raise ValueError("there are no sequences to compare.")
    mean = metrics.mean(kept)
    return Fidelity(measure, float(np.mean(kept)), float(np.min(kept)), len(kept), mean.low / 100, mean.high / 100)


def _measure(manifest: Manifest) -> str:
    if manifest.head == "embedding" and not manifest.labels:
        return "cosine"
    if manifest.head in ("masked_lm", "causal_lm"):
        return "probability of words"
    one_output = manifest.head == "classification" and manifest.width == 1  # whose rank matters near 0 and 1 as well
    return "score" if one_output or manifest.problem == "regression" else "probability"


def _compare(manifest: Manifest, measure: str, exact: Output, rounded: Output) -> float:
    a, b = exact.astype(np.float64), rounded.astype(np.float64)
    if measure == "cosine":
        assert manifest.embedding is not None  # noqa: S101  # for the type checker
        return min(_cosines(manifest.embedding, a, b))
    if measure == "score":
        return 1 - float(np.abs(a - b).max()) / max(1.0, float(np.abs(a).max()))
    if manifest.head == "classification" and default_function(manifest.problem, manifest.width) == "sigmoid":
        return 1 - float(np.abs(sigmoid(a) - sigmoid(b)).max())
    if manifest.head == "token" and not manifest.labels:  # the first and the last token of an answer
        a, b = a.T, b.T
    return 1 - float((np.abs(softmax(a) - softmax(b)).sum(axis=-1) / 2).mean())


def _cosines(embedding: Embedding, a: NDArray[np.float64], b: NDArray[np.float64]) -> Iterator[float]:
    """Yields the cosine of each form of a text: of its vector, its weights, and the mean one of its tokens' vectors."""
    width = embedding.multi_vector.width if embedding.multi_vector else 0
    weights = 0 if embedding.sparse is None else a.shape[1] if embedding.by_vocabulary else 1
    ends = np.cumsum([a.shape[1] - weights - width, weights, width])
    (dense, sparse, several), (dense_b, sparse_b, several_b) = (np.split(x, ends[:-1], axis=1) for x in (a, b))
    if embedding.vector:
        yield cosine(dense[0], dense_b[0])
    if embedding.sparse:
        w, w_b = np.maximum(sparse, 0).ravel(), np.maximum(sparse_b, 0).ravel()
        for _ in range(embedding.sparse.logarithms):
            w, w_b = np.log1p(w), np.log1p(w_b)
        yield cosine(w, w_b)
    if width:
        yield float(np.mean([cosine(*pair) for pair in zip(several, several_b, strict=True)]))
