"""Examples for text classification: labelled texts, and sentences that only a teacher labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from swiftlet_serve.models import datasets
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training.examples import Example, take_evenly, unlabelled
from swiftlet_serve.models.training.recipe import Finetuning

SENTENCE_WORDS: Final = range(4, 61)
SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")


def read_labelled_texts(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the labelled texts of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file is not a table of labelled texts.
    """
    texts = [text for file, count in work.train.items() for text in take_evenly(datasets.labelled(data / file), count)]
    encodings = tokenizer.encode([text.text for text in texts], work.max_tokens)
    return [Example(encoding, (text.label,)) for encoding, text in zip(encodings, texts, strict=True)]


def read_unlabelled_texts(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads sentences of running text, evenly spaced within each file.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    return unlabelled(tokenizer.encode(read_sentences(work, data), work.max_tokens))


def read_sentences(work: Finetuning, data: Path) -> list[str]:
    """Reads the sentences of the unlabelled texts, evenly spaced within each file.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    return [text for file, count in work.unlabelled.items() for text in take_evenly(_sentences(data / file), count)]


def _sentences(path: Path) -> list[str]:
    return [sentence for text in datasets.documents(path) for sentence in split_sentences(text)]


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a text that are neither very short nor very long."""
    return [sentence for sentence in SENTENCE_END.split(text) if len(sentence.split()) in SENTENCE_WORDS]
