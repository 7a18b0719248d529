"""The batches of a chunk: sequences of similar length. They depend only on the lengths."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlet_serve.types import Cost


def batches(lengths: Sequence[int], cost: Cost) -> list[list[int]]:
    """Groups sequences of similar length, within the limits of the engine.

    Args:
        lengths: tokens of each sequence.
        cost: the cost model of the engine.

    Returns:
        Indices into `lengths`, for each batch. A sequence above the limit of tokens is a batch of its own.
    """
    groups: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        rows = len(groups[-1]) + 1 if groups else 1
        charge = rows * length if cost.padded else tokens + length
        if groups and rows <= cost.max_rows and charge <= cost.max_tokens:
            groups[-1].append(index)
            tokens += length
        else:
            groups.append([index])
            tokens = length
    return groups
