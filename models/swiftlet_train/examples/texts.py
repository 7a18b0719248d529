"""Examples for text classification: labelled texts, and sentences that only a teacher labels."""

from __future__ import annotations

from pathlib import Path

from swiftlet_models import datasets
from swiftlet_models.datasets import DatasetError, Labelled
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import Example, take_evenly, unlabelled
from swiftlet_train.examples.sentences import read_sentences
from swiftlet_train.recipe import Finetuning


def read_labelled_texts(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the labelled texts and pairs of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file is not a table of labelled texts.
    """
    texts = read_texts(work, data)
    encodings = tokenizer.encode([text.texts for text in texts], work.max_tokens)
    return [Example(encoding, (text.label,)) for encoding, text in zip(encodings, texts, strict=True)]


def read_texts(work: Finetuning, data: Path) -> list[Labelled]:
    """Reads the texts of all training files with their labels, evenly spaced within each file.

    Raises:
        DatasetError: a file is not a table of labelled texts, or has a label that the recipe does not name.
    """
    unlabelled = []
    labels = max(2, len(work.labels))  # a single label is there, 1, or not, 0
    names = work.labels if len(work.labels) > 1 else ()
    for file, count in work.train.items():
        texts = take_evenly(datasets.labelled(data / file, names), count)
        if any(text.label >= labels for text in texts):
            raise DatasetError(f"{file} has a label above {labels - 1}, and the labels of the recipe count from 0.")
        unlabelled += texts
    return unlabelled


def read_unlabelled_texts(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads sentences of running text, evenly spaced within each file.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    return unlabelled(tokenizer.encode(read_sentences(work, data), work.max_tokens))
