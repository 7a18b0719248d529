"""Mean reciprocal rank of the first relevant text among the best ten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from swiftlet_models import datasets, metrics
from swiftlet_models.bm25 import BM25
from swiftlet_models.datasets import Unlabelled
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade
from swiftlet_serve.tasks.rerank import MAX_TEXTS

CANDIDATES: Final = 3  # texts for a query without labels
BEST: Final = 10  # texts that the mean reciprocal rank looks at


class Evaluator(evaluation.Evaluator):
    """Skips queries without a relevant text, with a blank text, and with more texts than a request may have."""

    golden_inputs = (
        {"query": "How do bees tell the way?", "texts": ["They dance.", "Rain fell all night on the tin roof."]},
        {"query": "봄은 어떤가?", "texts": ["서울의 봄은 짧지만 아름답다.", "no"]},
    )

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        for query in datasets.ranked(data)[skip:stop]:
            if any(query.relevant) and len(query.texts) <= MAX_TEXTS and all(text.strip() for text in query.texts):
                yield _case(query)

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        """Returns each question with the text that answers it and those after it, or each text with those after it."""
        around = [text.text for text in (*texts, *texts[:CANDIDATES])]
        starts = [i + (not text.question) for i, text in enumerate(texts)]
        return [
            {"inputs": {"query": text.question or text.text, "texts": around[start : start + CANDIDATES]}}
            for text, start in zip(texts, starts, strict=True)
        ]

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        """Returns the scores of the order in the file, and of BM25 with the words of all texts."""
        bm25 = BM25(text for case in cases for text in case.body["inputs"]["texts"])
        ranks = []
        for case in cases:
            query, texts = case.body["inputs"].values()
            scores = [bm25.score(query, text) for text in texts]
            order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
            ranks.append(_reciprocal_rank([case.expected[i] for i in order]))
        in_order = [_reciprocal_rank(case.expected) for case in cases]
        return {"the order of the file": metrics.mean(in_order), "BM25": metrics.mean(ranks)}

    def best(self, response: Any) -> str:
        return str(response[0]["index"])


def _case(query: datasets.Candidates) -> Case:
    def grade(response: Any) -> list[Grade]:
        order = [text["index"] for text in response]
        return [Grade({"mrr_10": _reciprocal_rank([query.relevant[i] for i in order])}, order[0])]

    return Case({"inputs": {"query": query.query, "texts": list(query.texts)}}, query.relevant, grade)


def _reciprocal_rank(relevant: Sequence[bool]) -> float:
    return next((1 / (rank + 1) for rank, right in enumerate(relevant[:BEST]) if right), 0.0)
