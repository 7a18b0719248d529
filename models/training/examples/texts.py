"""Examples for text classification: labelled texts, and sentences that only a teacher labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_serve.models import datasets
from swiftlet_serve.models.datasets import DatasetError, Labelled
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training.examples.corruption import corrupt
from swiftlet_serve.models.training.examples.example import Example, take_evenly, unlabelled
from swiftlet_serve.models.training.recipe import SHORTEST, Finetuning

SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")


def read_labelled_texts(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the labelled texts of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file is not a table of labelled texts.
    """
    texts = read_texts(work, data)
    encodings = tokenizer.encode([text.text for text in texts], work.max_tokens)
    return [Example(encoding, (text.label,)) for encoding, text in zip(encodings, texts, strict=True)]


def read_texts(work: Finetuning, data: Path) -> list[Labelled]:
    """Reads the texts of all training files with their labels, evenly spaced within each file.

    Raises:
        DatasetError: a file is not a table of labelled texts, or has a label that the recipe does not name.
    """
    found = []
    labels = max(2, len(work.labels))  # a single label is there, 1, or not, 0
    for file, count in work.train.items():
        texts = take_evenly(datasets.labelled(data / file), count)
        if any(text.label >= labels for text in texts):
            raise DatasetError(f"{file} has a label above {labels - 1}, and the labels of the recipe count from 0.")
        found += texts
    return found


def read_unlabelled_texts(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads sentences of running text, evenly spaced within each file.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    return unlabelled(tokenizer.encode(read_sentences(work, data), work.max_tokens))


def read_sentences(work: Finetuning, data: Path) -> list[str]:
    """Reads the sentences of the unlabelled texts, evenly spaced within each file, and corrupts some of them.

    If sentences are corrupted, a file with fewer than its number is taken again, and corrupted otherwise.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    found = []
    for file, count in work.unlabelled.items():
        sentences = _sentences(data / file, work.longest_unlabelled)
        repeats = count // max(1, len(sentences)) if work.corrupted else 0
        sentences = [*sentences * repeats, *take_evenly(sentences, count - repeats * len(sentences))]
        chance = np.random.default_rng(count)
        found += [corrupt(one, chance) if chance.random() < work.corrupted else one for one in sentences]
    return found


def _sentences(path: Path, longest: int) -> list[str]:
    return [sentence for text in datasets.documents(path) for sentence in split_sentences(text, longest)]


def split_sentences(text: str, longest: int = Finetuning.longest_unlabelled) -> list[str]:
    """Returns the sentences of a text that have at least `SHORTEST` and at most `longest` words."""
    words = range(SHORTEST, longest + 1)
    return [sentence for sentence in SENTENCE_END.split(text) if len(sentence.split()) in words]
