"""Accuracy of labels, on texts with the names of their labels, or of relations, on premises with hypotheses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import datasets, metrics
from swiftlet_models.datasets import DatasetError, Unlabelled
from swiftlet_models.encodings import Encoding
from swiftlet_models.label_names import in_words
from swiftlet_models.metrics import Score
from swiftlet_models.probabilities import softmax
from swiftlet_models.relations import find_relations
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade
from swiftlet_serve.tasks._zero_shot_requests import ZeroShotRequest
from swiftlet_serve.tasks.zero_shot import EmbeddingZeroShot, LabelledZeroShot, ZeroShot, answer
from swiftlet_serve.types import Row

TOPICS: Final = ("technology", "the weather", "food")  # labels of texts without one
MAX_CANDIDATES: Final = 10  # labels for one text


class Evaluator(evaluation.Evaluator):
    """Proposes all labels of the file, or the right one and nine others if there are more than ten.

    A hypothesis is the only candidate, and its relation to the premise is the answer.
    """

    golden_inputs = (
        "The new phone has a better camera.",
        "no",
        "Rain fell all night on the tin roof, and by the morning the river had come up to the second step.",
        "서울의 봄은 짧지만 아름답다.",
        "Ünïcödé, naïve café, e\u0301 and ﬁ 🎬: the tokenizer must keep its footing.",
    )
    _task: ZeroShot | EmbeddingZeroShot | LabelledZeroShot

    def golden_bodies(self) -> list[dict[str, Any]]:
        parameters = {"candidate_labels": ["technology", "the weather", "서울"]}
        return [{**body, "parameters": parameters} for body in super().golden_bodies()]

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        return [{"inputs": text.text, "parameters": {"candidate_labels": list(TOPICS)}} for text in texts]

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        try:
            pairs = datasets.inferences(data)[skip:stop]
        except DatasetError:
            yield from _named_cases(data, skip, stop)
            return
        if not isinstance(self._task, ZeroShot):
            raise DatasetError(f"{data.name} holds premises and hypotheses, and an embedding model reads no pairs.")
        labels = self._task.manifest.labels
        for pair in pairs:
            right = tuple(labels[i] for i in find_relations(pair.label, labels))
            yield _case(pair.premise, right, [pair.hypothesis], hypothesis_template="{}")

    def task(self, cases: Sequence[Case]) -> Any:
        has_hypotheses = "hypothesis_template" in cases[0].body["parameters"]
        if not has_hypotheses or not isinstance(self._task, ZeroShot):
            return None
        return Relations(self._task.tokenizer, self._task.manifest, self._task.entailment)

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        counts = Counter(label for case in cases for label in case.expected)
        ((commonest, _),) = counts.most_common(1)
        return {"always the commonest label": metrics.mean([float(commonest in case.expected) for case in cases])}

    def best(self, response: Any) -> str:
        return str(response[0]["label"])


class Relations(ZeroShot):
    """A task that ranks the relations of a text to one hypothesis, and not the labels."""

    def decode(self, request: ZeroShotRequest, encodings: Sequence[Encoding], rows: Sequence[Row]) -> Any:
        """Returns the relations with their probabilities, the most probable one first."""
        del encodings
        scores = softmax(np.array([row[0] for row in rows], np.float64))
        return answer(request, self.manifest.labels, scores)


def _named_cases(data: Path, skip: int, stop: int | None) -> Iterator[Case]:
    examples = [(example.text, in_words(example.label)) for example in datasets.named(data) if example.text.strip()]
    labels = sorted({label for _, label in examples})
    for number, (text, right) in list(enumerate(examples))[skip:stop]:
        wrong = np.array([label for label in labels if label != right])
        chosen = np.random.default_rng(number).permutation(len(wrong))[: MAX_CANDIDATES - 1]
        yield _case(text, (right,), sorted([right, *wrong[chosen].tolist()]))


def _case(text: str, right: tuple[str, ...], candidates: Sequence[str], **parameters: str) -> Case:
    def grade(response: Any) -> list[Grade]:
        best = response[0]["label"]
        return [Grade({"accuracy": float(best in right)}, best)]

    return Case({"inputs": text, "parameters": {"candidate_labels": list(candidates), **parameters}}, right, grade)
