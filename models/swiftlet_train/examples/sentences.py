"""Sentences of running text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_models import datasets
from swiftlet_train.examples.corruption import corrupt
from swiftlet_train.examples.example import take_evenly
from swiftlet_train.recipe import SHORTEST, Finetuning

SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")


def read_sentences(work: Finetuning, data: Path) -> list[str]:
    """Reads the sentences of the unlabelled texts, evenly spaced within each file, and corrupts some of them.

    If sentences are corrupted, a file with fewer than its number is taken again, and corrupted otherwise.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    texts = []
    for file, count in work.unlabelled.items():
        sentences = _sentences(data / file, work.longest_unlabelled)
        repeats = count // max(1, len(sentences)) if work.corrupted else 0
        sentences = [*sentences * repeats, *take_evenly(sentences, count - repeats * len(sentences))]
        chance = np.random.default_rng(count)
        texts += [corrupt(sentence, chance) if chance.random() < work.corrupted else sentence for sentence in sentences]
    return texts


def _sentences(path: Path, longest: int) -> list[str]:
    return [sentence for text in datasets.documents(path) for sentence in split_sentences(text, longest)]


def split_sentences(text: str, longest: int = Finetuning.longest_unlabelled) -> list[str]:
    """Returns the sentences of a text that have at least `SHORTEST` and at most `longest` words."""
    words = range(SHORTEST, longest + 1)
    return [sentence for sentence in SENTENCE_END.split(text) if len(sentence.split()) in words]
