"""The examples of a fine-tuning, and their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from swiftlet_serve.models.tokenizer import Encoding

TEACHER_TOKENS: Final = 512  # that a teacher reads at most: the positions of a BERT
NO_LABEL: Final = -100  # the target of an unlabelled text, which the cross entropy ignores
BATCHES_SORTED_TOGETHER: Final = 50  # batches whose examples are sorted by length, to reduce padding

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


def make_batches(examples: Sequence[Example], size: int, seed: int) -> list[list[int]]:
    """Returns random batches of example numbers with similar lengths. Each example occurs once."""
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(examples))
    batches = []
    for start in range(0, len(order), size * BATCHES_SORTED_TOGETHER):
        group = order[start : start + size * BATCHES_SORTED_TOGETHER].tolist()
        by_length = sorted(group, key=lambda i: len(examples[i].encoding.input_ids))
        batches += [by_length[i : i + size] for i in range(0, len(by_length), size)]
    return [batches[i] for i in chance.permutation(len(batches))]


def collate(examples: Sequence[Example], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Returns padded input_ids and token_type_ids (B, S), and lengths (B,)."""

    def pad(rows: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)

    encodings = [example.encoding for example in examples]
    return (
        pad([torch.from_numpy(encoding.input_ids) for encoding in encodings]),
        pad([torch.from_numpy(encoding.token_type_ids) for encoding in encodings]),
        torch.tensor([len(encoding.input_ids) for encoding in encodings], device=device),
    )


def hash_examples(examples: Sequence[Example]) -> str:
    """Returns a SHA-256 of the examples in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(np.array([*example.target, len(example.encoding.input_ids)], np.int64).tobytes())
        digest.update(example.encoding.input_ids.tobytes())
    return digest.hexdigest()
