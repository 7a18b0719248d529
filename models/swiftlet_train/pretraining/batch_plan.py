"""Chooses the sequences of a batch: a fixed number, or as many as have the tokens of a batch of full sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Batches of sequences in a fixed order, which repeats in each epoch."""

    order: NDArray[np.int64]
    """The numbers of the sequences."""
    size: int
    """Sequences per batch, unless there are `starts`."""
    starts: NDArray[np.int64] | None = None
    """The position in `order` where each batch of an epoch starts, and where the last one ends."""

    def __len__(self) -> int:
        """Returns the number of whole batches of an epoch."""
        return len(self.order) // self.size if self.starts is None else len(self.starts) - 1

    def take(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the sequences of a batch and the epoch of each, (B,) and (B,), both counted from 0."""
        if self.starts is None:
            positions = np.arange(number * self.size, (number + 1) * self.size)
            return self.order[positions % len(self.order)], positions // len(self.order)
        epoch, index = divmod(number, len(self.starts) - 1)
        taken = self.order[self.starts[index] : self.starts[index + 1]]
        return taken, np.full(len(taken), epoch)


def fill_batches(order: NDArray[np.int64], lengths: NDArray[np.int64], size: int, tokens: int) -> BatchPlan:
    """Returns a plan whose batches have `tokens` tokens each, up to one sequence more or less.

    `lengths` (R,) are the tokens of all sequences, at most `tokens`. Sequences after the last full batch are left out.
    """
    before = np.cumsum(lengths[order]) - lengths[order]
    count = int(lengths[order].sum()) // tokens
    return BatchPlan(order, size, np.searchsorted(before, np.arange(count + 1) * tokens))
