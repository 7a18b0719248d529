"""The examples of a fine-tuning."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from swiftlet_models.encodings import Encoding

TEACHER_TOKENS: Final = 512  # that a teacher reads at most: the positions of a BERT
NO_LABEL: Final = -100  # the target of an unlabelled text, which the cross entropy ignores

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Example:
    """A sequence with its target."""

    encoding: Encoding
    target: tuple[int, ...]
    """The label of the text, the positions of the answer's first and last token, or the label of each token. NO_LABEL
    stands for a label or position that only the teacher predicts."""
    context: range = range(0)
    """The positions that an answer may take."""


def unlabelled(encodings: Sequence[Encoding]) -> list[Example]:
    """Returns examples that only a teacher labels."""
    return [Example(encoding, (NO_LABEL,)) for encoding in encodings]


def take_evenly(items: Sequence[T], count: int) -> list[T]:
    """Returns at most `count` of the items, evenly spaced."""
    return [items[i] for i in np.linspace(0, len(items) - 1, min(count, len(items))).astype(int)]


def hash_examples(examples: Sequence[Example]) -> str:
    """Returns a SHA-256 of the examples in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(np.array([*example.target, len(example.encoding.input_ids)], np.int64).tobytes())
        digest.update(example.encoding.input_ids.tobytes())
    return digest.hexdigest()
