"""Pairs of texts that belong together, for contrastive training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from swiftlet_models import datasets
from swiftlet_models.datasets import Question
from swiftlet_models.label_names import in_words
from swiftlet_models.relations import ENTAILED
from swiftlet_train.examples.example import take_evenly
from swiftlet_train.examples.relevance import RELEVANT, judge_sentences
from swiftlet_train.examples.sentences import split_sentences
from swiftlet_train.recipe import Finetuning

KIND: Final = re.compile(
    r"\b(?:is|was|are|were) (?:an?|the|one of the) ([a-z][\w' -]{2,50}?)"
    r"(?= (?:of|in|from|that|which|who|whose|by|located|and|for|at|on|with|to|born|based|near|where)\b|[,.;(])",
    re.IGNORECASE,
)
"""What the subject of a sentence is: "a former railway station" in "Acton was a former railway station in Ohio"."""


class Pair(NamedTuple):
    """A text, its partner, and a text that is no partner; empty if there is none."""

    text: str
    partner: str
    wrong: str = ""


def read_pairs(work: Finetuning, data: Path) -> list[Pair]:
    """Reads the pairs of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file has neither texts with labels, pairs or answers, nor articles.
    """
    return [pair for file, count in work.train.items() for pair in _read(data / file, count)]


def _read(path: Path, count: int) -> list[Pair]:
    if path.suffix == ".json":
        asked = [question for question in datasets.questions(path) if question.answers]
        return [pair for question in take_evenly(asked, count) for pair in _answers(question)]
    if ".jsonl" not in path.suffixes:
        return take_evenly(list(_kinds(path)), count)
    try:
        return take_evenly(_entailments(path), count)
    except datasets.DatasetError:
        return take_evenly(_labels(path), count)


def _answers(question: Question) -> Iterator[Pair]:
    """Yields a question with the sentence that has its answer, and with another sentence of the paragraph."""
    judged = list(judge_sentences(question, negatives=1))
    wrong = next((pair.text for pair in judged if pair.target != RELEVANT), "")
    yield from (Pair(pair.query, pair.text, wrong) for pair in judged if pair.target == RELEVANT)


def _entailments(path: Path) -> list[Pair]:
    return [
        Pair(nli.premise, nli.hypothesis) for nli in datasets.inferences(path) if nli.label.lower().startswith(ENTAILED)
    ]


def _labels(path: Path) -> list[Pair]:
    return [Pair(item.text, in_words(item.label)) for item in datasets.named(path) if item.text.strip()]


def _kinds(path: Path) -> Iterator[Pair]:
    """Yields the beginning of each article that tells what its subject is, with that."""
    for _, text in datasets.articles(path):
        sentences = split_sentences(text[:1000])[:2]
        match = KIND.search(sentences[0]) if sentences else None
        if match:
            yield Pair(" ".join(sentences), match[1].lower())
