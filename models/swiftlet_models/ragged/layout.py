"""What a network in torch gets of a ragged batch. All numbers are int32, so that one copy moves them.

The host sends no more than the batch itself. `Places`, which follow from it, are computed on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    @property
    def attended(self) -> NDArray[np.int64]: ...
    @property
    def given(self) -> NDArray[np.float32] | None: ...


class Places(NamedTuple):
    """Where tokens and positions in focus are. Places beyond the last sequence's have position, token and owner 0."""

    positions: Tensor  # (T,): each token's place in its sequence
    before: Tensor  # (T,): its neighbours in its sequence; T: none
    after: Tensor
    focus: Tensor  # (N,): the token in focus
    owner: Tensor  # (N,): its sequence


class Keys(NamedTuple):
    """The tokens that attention reads as keys, in a batch whose other tokens are only queries."""

    tokens: Tensor  # (K,): their places among all tokens
    ends: Tensor  # cumulative numbers (B + 1,)


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
        return 2 * self.tokens + 2 * (self.rows + 1) + self.focus

    @classmethod
    def of(cls, batch: Ragged) -> Sizes:
        """Returns the sizes of a batch."""
        return cls(len(batch.input_ids), len(batch.offsets) - 1, len(batch.focus))


class Layout:
    """Views of one buffer that holds a batch. Shape letters: see `Sizes`."""

    def __init__(
        self, buffer: Tensor, sizes: Sizes, longest: int, keys: Keys | None = None, given: Tensor | None = None
    ) -> None:
        """Divides a buffer of `sizes.numbers` numbers.

        `longest` bounds the length of a sequence. `given` are the hidden states (T, H) that a head alone reads.
        """
        self.buffer, self.sizes, self.longest, self.keys, self.given = buffer, sizes, longest, keys, given
        t, b, n = sizes.tokens, sizes.rows + 1, sizes.focus
        # Cumulative lengths (B + 1,), and each position's place in its sequence.
        self.input_ids, self.token_type_ids, self.ends, self.focus_ends, self.focus = torch.split(
            buffer, [t, t, b, b, n]
        )

    def write(self, batch: Ragged) -> None:
        """Writes a batch that fits. Places beyond its tokens and positions get zeros, further sequences length 0."""
        _fill(self.input_ids, batch.input_ids, 0)
        _fill(self.token_type_ids, batch.token_type_ids, 0)
        _fill(self.ends, batch.offsets, len(batch.input_ids))
        _fill(self.focus_ends, batch.focus_offsets, len(batch.focus))
        _fill(self.focus, batch.focus, 0)

    @classmethod
    def of(cls, batch: Ragged) -> Layout:
        """Returns the layout of a batch, of exactly its sizes, on the CPU."""
        sizes = Sizes.of(batch)
        lengths = np.diff(batch.offsets)
        buffer = torch.empty(sizes.numbers, dtype=torch.int32)
        given = None if batch.given is None else torch.from_numpy(batch.given)
        layout = cls(buffer, sizes, int(lengths.max()), None if attends_to_all(batch) else _keys(batch), given)
        layout.write(batch)
        return layout

    def to(self, device: torch.device) -> Layout:
        """Returns the layout on a device."""
        keys = None if self.keys is None else Keys(*(part.to(device) for part in self.keys))
        given = None if self.given is None else self.given.to(device)
        return Layout(self.buffer.to(device), self.sizes, self.longest, keys, given)


def attends_to_all(batch: Ragged) -> bool:
    """Returns whether every token attends to all tokens of its sequence, as far as the batch says."""
    return bool((batch.attended == np.diff(batch.offsets)).all())


def _keys(batch: Ragged) -> Keys:
    places = np.arange(len(batch.input_ids)) - np.repeat(batch.offsets[:-1], np.diff(batch.offsets))
    tokens = np.flatnonzero(places < np.repeat(batch.attended, np.diff(batch.offsets)))
    ends = np.concatenate([[0], np.cumsum(batch.attended)]).astype(np.int32)
    return Keys(torch.from_numpy(tokens), torch.from_numpy(ends))


def _fill(view: Tensor, values: NDArray[np.int64], rest: int) -> None:
    array = view.numpy()
    array[: len(values)] = values
    array[len(values) :] = rest
