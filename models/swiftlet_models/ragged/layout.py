"""The indices of a ragged batch, as a network in torch reads them. All are int32, so that one copy moves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Ragged(Protocol):
    """The parts of `swiftlet_serve.types.Batch` that a layout needs. Arrays are int64."""

    @property
    def input_ids(self) -> NDArray[np.int64]: ...
    @property
    def token_type_ids(self) -> NDArray[np.int64]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def focus(self) -> NDArray[np.int64]: ...
    @property
    def focus_offsets(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class Sizes:
    """The sizes of a batch, or the capacity of a static one."""

    tokens: int  # T
    rows: int  # B
    focus: int  # N

    def holds(self, other: Sizes) -> bool:
        """Returns whether a batch of the other sizes fits."""
        return other.tokens <= self.tokens and other.rows <= self.rows and other.focus <= self.focus

    @property
    def numbers(self) -> int:
        """The length of the layout's buffer."""
        return 5 * self.tokens + 2 * (self.rows + 1) + 2 * self.focus

    @classmethod
    def of(cls, batch: Ragged) -> Sizes:
        """Returns the sizes of a batch."""
        return cls(len(batch.input_ids), len(batch.offsets) - 1, len(batch.focus))


class Layout:
    """Views of one buffer that holds a batch and its indices. Shape letters: see `Sizes`."""

    def __init__(self, buffer: Tensor, sizes: Sizes, longest: int) -> None:
        """Divides a buffer of `sizes.numbers` numbers. `longest` bounds the length of a sequence."""
        self.buffer, self.sizes, self.longest = buffer, sizes, longest
        t, b, n = sizes.tokens, sizes.rows + 1, sizes.focus
        parts = iter(torch.split(buffer, [t, t, t, t, t, b, b, n, n]))
        self.input_ids, self.token_type_ids, self.positions = next(parts), next(parts), next(parts)
        self.before, self.after = next(parts), next(parts)  # each token's neighbours in its sequence; T: none
        self.ends, self.focus_ends = next(parts), next(parts)  # cumulative lengths (B + 1,)
        self.focus, self.owner = next(parts), next(parts)  # (N,): the token, and its sequence

    def write(self, batch: Ragged) -> None:
        """Writes a batch that fits. Places beyond its tokens and positions get zeros, further sequences length 0."""
        lengths, counts = np.diff(batch.offsets), np.diff(batch.focus_offsets)
        token, longest = np.arange(len(batch.input_ids)), self.sizes.tokens
        positions = token - np.repeat(batch.offsets[:-1], lengths)
        last = positions == np.repeat(lengths, lengths) - 1
        starts = np.repeat(batch.offsets[:-1], counts)
        _fill(self.input_ids, batch.input_ids, 0)
        _fill(self.token_type_ids, batch.token_type_ids, 0)
        _fill(self.positions, positions, 0)
        _fill(self.before, np.where(positions > 0, token - 1, longest), longest)
        _fill(self.after, np.where(last, longest, token + 1), longest)
        _fill(self.ends, batch.offsets, len(token))
        _fill(self.focus_ends, batch.focus_offsets, len(batch.focus))
        _fill(self.focus, starts + batch.focus, 0)
        _fill(self.owner, np.repeat(np.arange(len(lengths)), counts), 0)

    @classmethod
    def of(cls, batch: Ragged) -> Layout:
        """Returns the layout of a batch, of exactly its sizes, on the CPU."""
        sizes = Sizes.of(batch)
        layout = cls(torch.empty(sizes.numbers, dtype=torch.int32), sizes, int(np.diff(batch.offsets).max()))
        layout.write(batch)
        return layout

    def to(self, device: torch.device) -> Layout:
        """Returns the layout on a device."""
        return Layout(self.buffer.to(device), self.sizes, self.longest)


def _fill(view: Tensor, values: NDArray[np.int64], rest: int) -> None:
    array = view.numpy()
    array[: len(values)] = values
    array[len(values) :] = rest
