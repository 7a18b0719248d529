"""F1 of entities, on a file in CoNLL's columns. An entity is right if its span and its kind are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from swiftlet_models import datasets, metrics
from swiftlet_models.datasets import Span, Tagged, Unlabelled
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade
from swiftlet_serve.tasks._labelled_entities import LabelledEntities
from swiftlet_serve.tasks.entities import Entities

KINDS: Final = ("person", "place", "organization", "date")  # labels of texts without any
CAPITALISED: Final = re.compile(r"(?<!\S)[^\W\d_a-z]\w*(?: [^\W\d_a-z]\w*)*(?!\S)")


class Evaluator(evaluation.Evaluator):
    """Measures the F1 of the entities of all texts together. Two models differ by the texts' own F1.

    A word has the label of its first token (strategy `first`), as in training. A model that reads labels is asked for
    all kinds of entities of the file.
    """

    golden_inputs = (
        "Clara moved from Bern to New York in March to work for the United Nations.",
        "nothing to see here",
        "On Monday, Dr. O'Neill-Smith met three engineers of Acme Ltd. (Zürich) 🎬 at the Café de l'Étoile.",
        "김영희는 2019년 서울에서 한국은행에 들어갔다.",
    )

    def __init__(self, task: Entities | LabelledEntities):
        self._own: dict[str, Any] = {}  # parameters of requests that are made of texts alone
        self._scheme: str | None = None
        if isinstance(task, LabelledEntities):
            self._own = {"parameters": {"labels": list(task.labelling.labels or KINDS)}}
        else:
            self._scheme = "bio" if {label[:2] for label in task.labels} <= {"O", "B-", "I-"} else "bilou"

    def golden_bodies(self) -> list[dict[str, Any]]:
        return [body | self._own for body in super().golden_bodies()]

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        return [body | self._own for body in super().bodies(texts)]

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        texts = datasets.tagged(data)
        parameters: dict[str, Any] = {"aggregation_strategy": "first", "label_scheme": self._scheme}
        if self._scheme is None:
            parameters = {"labels": sorted({kind for text in texts for _, _, kind in text.spans})}
        return [_case(text, parameters) for text in texts[skip:stop]]

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        kinds = Counter(kind for case in cases for _, _, kind in case.expected)
        commonest = max(kinds, key=kinds.__getitem__, default="")
        entities = [
            [(run.start(), run.end(), commonest) for run in CAPITALISED.finditer(case.body["inputs"])] for case in cases
        ]
        return {f"every run of capitalised words is {commonest}": _f1(cases, entities)}

    def best(self, response: Any) -> str:
        return "; ".join(f"{entity['entity_group']}: {entity['word']}" for entity in response)

    def scores(self, cases: Sequence[Case], answers: Sequence[Any]) -> dict[str, Score]:
        return {"f1": _f1(cases, answers)}


def _case(text: Tagged, parameters: dict[str, Any]) -> Case:
    def grade(response: Any) -> list[Grade]:
        spans = tuple(_span(text.text, entity) for entity in response)
        sizes = len(spans) + len(text.spans)
        return [Grade({"f1": 2 * len({*spans} & {*text.spans}) / sizes if sizes else 1.0}, spans)]

    return Case({"inputs": text.text, "parameters": parameters}, text.spans, grade)


def _span(text: str, entity: dict[str, Any]) -> Span:
    """Returns the span of an entity without the spaces around it, which some tokenizers count to the token."""
    start, end = entity["start"], entity["end"]
    return end - len(text[start:end].lstrip()), start + len(text[start:end].rstrip()), entity["entity_group"]


def _f1(cases: Sequence[Case], answers: Sequence[Sequence[Span]]) -> Score:
    right = [len({*spans} & {*case.expected}) for case, spans in zip(cases, answers, strict=True)]
    return metrics.span_f1(right, [len({*spans}) for spans in answers], [len(case.expected) for case in cases])
