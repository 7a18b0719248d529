"""A batch of sequences, as it travels from the dispatcher to an engine.

Shapes are written with these letters: B sequences with T tokens, N focus positions and M top-k candidates in total.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types.topk import NOTHING, Ranked, Scored, reduce_rows, width

Row = NDArray[np.float32]
"""One sequence's share of an engine's output, (F, O): the head's O numbers for each of the F focus positions.

The rows of `Ranked` and `Scored` sequences have the shapes that `types.topk` describes.
"""


class PaddedBatch(NamedTuple):
    """A batch padded to its longest sequence. The fields have the names of the inputs of an artifact's ONNX graph."""

    input_ids: NDArray[np.int64]  # (B, S)
    token_type_ids: NDArray[np.int64]  # (B, S)
    lengths: NDArray[np.int64]  # (B,): tokens of each sequence, without padding
    focus: NDArray[np.int64]  # (N,): position s of sequence b is b * S + s


@dataclass(eq=False)
class Batch:
    """B sequences laid end to end, without padding."""

    input_ids: NDArray[np.int64]  # (T,)
    token_type_ids: NDArray[np.int64]  # (T,)
    offsets: NDArray[np.int64]  # (B + 1,): sequence b has the tokens offsets[b]:offsets[b + 1]
    focus: NDArray[np.int64]  # (N,): positions within their own sequence
    focus_offsets: NDArray[np.int64]  # (B + 1,): sequence b has focus[focus_offsets[b]:focus_offsets[b + 1]]
    top_k: NDArray[np.int64]  # (B,): the number of values that a `Ranked` sequence asks for; 0 for other sequences
    candidates: NDArray[np.int64]  # (M,): columns that take part in top-k, or the targets of `Scored` sequences
    candidate_offsets: NDArray[np.int64]  # (B + 1,): as focus_offsets, for candidates
    attended: NDArray[np.int64]  # (B,): the tokens of a sequence that its tokens attend to, from the first one on
    heads: NDArray[np.int64]  # (B,): the head that reads a sequence, or in a trunk the adapter that changes it
    given: NDArray[np.float32] | None = None  # (T, H): the hidden states, if the network is a head alone

    @classmethod
    def of(cls, encodings: Sequence[Encoding]) -> Batch:
        """Returns the batch of these sequences."""
        top_k = [e.top_k if isinstance(e, Ranked) else 0 for e in encodings]
        candidates = [_candidates(e) for e in encodings]
        return cls(
            input_ids=np.concatenate([e.input_ids for e in encodings]),
            token_type_ids=np.concatenate([e.token_type_ids for e in encodings]),
            offsets=_offsets(e.input_ids for e in encodings),
            focus=np.concatenate([e.focus for e in encodings]),
            focus_offsets=_offsets(e.focus for e in encodings),
            top_k=np.array(top_k),
            candidates=np.concatenate(candidates),
            candidate_offsets=_offsets(candidates),
            attended=np.array([e.attends_to for e in encodings]),
            heads=np.array([e.head for e in encodings]),
        )

    @classmethod
    def without_top_k(cls, **arrays: NDArray[np.int64]) -> Batch:
        """Returns a batch without `Ranked` sequences, from its first five fields."""
        zeros = np.zeros(len(arrays["offsets"]), np.int64)
        arrays |= {"top_k": zeros[1:], "candidates": NOTHING, "candidate_offsets": zeros}
        return cls(**arrays, attended=np.diff(arrays["offsets"]), heads=zeros[1:], given=None)

    def for_trunk(self) -> Batch:
        """Returns the batch without heads, top-k and targets."""
        zeros = np.zeros(len(self.offsets), np.int64)
        return replace(self, top_k=zeros[1:], candidates=NOTHING, candidate_offsets=zeros, heads=zeros[1:])

    def part(self, sequences: Sequence[int]) -> Batch:
        """Returns the batch of some of its sequences."""
        encodings = self.encodings()
        return Batch.of([encodings[b] for b in sequences])

    def for_head(self, head: int) -> Batch:
        """Returns the batch with one head that reads all sequences."""
        return replace(self, heads=np.full(len(self), head))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """The numbers of the sequences, in the order of the C++ interface: offsets come first."""
        counts = self.offsets, self.focus_offsets, self.candidate_offsets, self.top_k, self.attended, self.heads
        return *counts, self.input_ids, self.token_type_ids, self.focus, self.candidates

    def encodings(self) -> list[Encoding]:
        """Returns the sequences of the batch, as views."""
        tokens, focus = self.offsets[1:-1], self.focus_offsets[1:-1]
        parts = np.split(self.input_ids, tokens), np.split(self.token_type_ids, tokens), np.split(self.focus, focus)
        chosen = np.split(self.candidates, self.candidate_offsets[1:-1])
        about = zip(self.top_k.tolist(), chosen, self.attended.tolist(), self.heads.tolist(), strict=True)
        return [
            _reduced(
                Encoding(*part, attended=None if attended == len(part[0]) else attended, head=head), top_k, candidates
            )
            for part, (top_k, candidates, attended, head) in zip(zip(*parts, strict=True), about, strict=True)
        ]

    def row_shapes(self, outputs: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the shape of each sequence's row, for heads with these numbers of outputs."""
        focus, candidates = self.focus_offsets.tolist(), self.candidate_offsets.tolist()
        return [
            (focus[b + 1] - focus[b], width(top_k, candidates[b + 1] - candidates[b], outputs[head]))
            for b, (top_k, head) in enumerate(zip(self.top_k.tolist(), self.heads.tolist(), strict=True))
        ]

    def padded(self) -> PaddedBatch:
        """Returns the batch as B rows of S tokens, where S is the longest length. Padding is zeros."""
        lengths = np.diff(self.offsets)
        B, S = len(self), int(lengths.max())  # noqa: N806
        row = np.repeat(np.arange(B), lengths)
        column = np.arange(len(self.input_ids)) - np.repeat(self.offsets[:-1], lengths)
        input_ids = np.zeros((B, S), np.int64)
        input_ids[row, column] = self.input_ids
        token_type_ids = np.zeros((B, S), np.int64)
        token_type_ids[row, column] = self.token_type_ids
        focus = np.repeat(np.arange(B), np.diff(self.focus_offsets)) * S + self.focus
        return PaddedBatch(input_ids, token_type_ids, lengths, focus)

    def split_rows(self, outputs: NDArray[np.float32]) -> list[Row]:
        """Splits the head's outputs (N, O) into one row for each sequence. Rows are copies, not views."""
        # Surplus outputs go to the last row. Its shape is then wrong, and the check of the shapes rejects the batch.
        focus, first = [*self.focus_offsets[:-1].tolist(), len(outputs)], self.candidate_offsets.tolist()
        rows = []
        for b, top_k in enumerate(self.top_k.tolist()):
            part = outputs[focus[b] : focus[b + 1]]
            rows.append(reduce_rows(part, top_k, self.candidates[first[b] : first[b + 1]]))
        return rows


def _candidates(encoding: Encoding) -> NDArray[np.int64]:
    if isinstance(encoding, Ranked):
        return encoding.candidates
    return encoding.targets if isinstance(encoding, Scored) else NOTHING


def _reduced(encoding: Encoding, top_k: int, candidates: NDArray[np.int64]) -> Encoding:
    """Returns the sequence as its entries in a batch describe it."""
    if top_k:
        return Ranked(**vars(encoding), top_k=top_k, candidates=candidates)
    return Scored(**vars(encoding), targets=candidates) if len(candidates) else encoding


def _offsets(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Returns where each part begins when all are laid end to end, and where the last one ends."""
    return np.array(list(accumulate(map(len, parts), initial=0)))
