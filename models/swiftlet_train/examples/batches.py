"""The batches of a fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from swiftlet_train.examples.example import Example

BATCHES_SORTED_TOGETHER: Final = 50  # batches whose examples are sorted by length, to reduce padding


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
