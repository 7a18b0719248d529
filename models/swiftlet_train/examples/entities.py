"""Examples for entities: texts whose tokens are labelled by BIO, the beginnings and the insides of spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import datasets
from swiftlet_models.datasets import Tagged
from swiftlet_models.encodings import TokenizedText
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import NO_LABEL, Example, take_evenly
from swiftlet_train.recipe import Finetuning, RecipeError

OUTSIDE: Final = "O"


def read_entities(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the texts of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file is not in CoNLL's columns.
        RecipeError: no label is O, or a kind of entities has no labels.
    """
    return make_entity_examples(work, take_tagged_texts(work, data), tokenizer)


def take_tagged_texts(work: Finetuning, data: Path) -> list[Tagged]:
    """Takes the texts of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file is not in CoNLL's columns.
    """
    return [text for file, count in work.train.items() for text in take_evenly(datasets.tagged(data / file), count)]


def make_entity_examples(work: Finetuning, texts: Sequence[Tagged], tokenizer: Tokenizer) -> list[Example]:
    """Turns tagged texts into examples. A text of more than `max_tokens` becomes several.

    An example's encoding is a `Chunk` with the index of its text. The targets are the labels of the tokens in `focus`.

    Raises:
        RecipeError: no label is O, or a kind of entities has no labels.
    """
    numbers = {label: i for i, label in enumerate(work.labels)}
    for label in (OUTSIDE, *(f"{prefix}-{kind}" for kind in work.entity_kinds.values() for prefix in "BI" if kind)):
        if label not in numbers:
            raise RecipeError(f"the labels of a task like entities must contain {label}.")
    size = work.max_tokens - tokenizer.special_count(pair=False)
    examples = []
    for index, tokens in enumerate(tokenizer.tokenize([text.text for text in texts])):
        for chunk in tokenizer.chunks(tokens, index, size, 0):
            targets = tuple(find_labels(texts[index], chunk.tokens, work.entity_kinds, numbers))
            examples.append(Example(chunk, targets))
    return examples


def find_labels(
    text: Tagged, tokens: TokenizedText, kinds: Mapping[str, str], numbers: Mapping[str, int]
) -> Iterator[int]:
    """Yields the number of each token's label.

    `kinds` maps the kinds of entities of a file to those of the labels. Spans of other kinds are no entities. A kind
    that it maps to an empty text may be any of them, so that its tokens have no label.
    """
    labels = np.full(len(text.text) + 1, OUTSIDE, object)  # of each character
    for start, end, kind in text.spans:
        name = kinds.get(kind)
        if name is not None:
            labels[start:end] = f"I-{name}" if name else None
            labels[start] = f"B-{name}" if name else None
    for (start, end), first in zip(tokens.offsets, find_starts(text.text, tokens), strict=True):
        label = labels[first] if end > start else OUTSIDE
        yield NO_LABEL if label is None else numbers[label]


def find_starts(text: str, tokens: TokenizedText) -> NDArray[np.int64]:
    """Returns where each token starts without the space before it, (F,), which SentencePiece's tokens include."""
    spans = tokens.offsets.tolist()
    starts = [end - len(text[start:end].lstrip()) if text[start:end].strip() else start for start, end in spans]
    return np.array(starts, np.int64)
