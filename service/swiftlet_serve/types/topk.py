"""Reduced rows: the top-k of rows that are as long as a vocabulary, or one log-probability of each.

An engine reduces such rows before they leave it, because the transfer and the search of 30,522 logits for each mask
would be slow. A row (F, O) of a `Ranked` sequence becomes (F, 1 + 2 K) float32. For each of its F focus positions it
holds:

    the total, the K largest logits in descending order, their K columns

The total is the logarithm of the sum of the exponentials of all O logits, so exp(logit - total) is the softmax
probability. It is NaN if a logit is not finite. Columns are integers far below 2^24, so float32 holds them exactly.

A row of a `Scored` sequence becomes (F, 1): the logit of each position's target less the total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.encodings import Encoding, Ids

GROUP: Final = 64  # logits of a group, whose maximum decides whether they are ranked

Floats = NDArray[np.float32]
NOTHING: Final[Ids] = np.zeros(0, np.int64)  # no restriction: all columns are candidates


@dataclass(eq=False)
class Ranked(Encoding):
    """A sequence whose rows are reduced to their top-k."""

    top_k: int  # K, unless there are fewer candidates; at least 1
    candidates: Ids  # (M,): distinct columns to choose from; empty: all columns


@dataclass(eq=False)
class Scored(Encoding):
    """A sequence whose rows are reduced to the log-probabilities of one column for each focus position."""

    targets: Ids  # (F,): the columns


class Ranking(NamedTuple):
    """The parts of a ranked row."""

    total: Floats  # (F, 1)
    largest: Floats  # (F, K)
    columns: Ids  # (F, K)

    @classmethod
    def of(cls, row: Floats) -> Ranking:
        """Splits a ranked row, (F, 1 + 2 K)."""
        return cls(row[:, :1], row[:, 1 : _middle(row)], row[:, _middle(row) :].astype(np.int64))


def width(top_k: int, candidates: int, outputs: int) -> int:
    """Returns the width of a row for O outputs and M candidates.

    If `top_k` is 0, the candidates are the targets of a `Scored` sequence. Without candidates, the row is not reduced.
    """
    if top_k:
        return 1 + 2 * min(top_k, candidates or outputs)
    return 1 if candidates else outputs


def is_of(row: Floats, outputs: int) -> bool:
    """Returns whether all columns of a ranked row are valid for O outputs."""
    columns = row[:, _middle(row) :]
    return bool(((columns >= 0) & (columns < outputs)).all())


def _middle(row: Floats) -> int:
    """Returns the index of the first column number in a ranked row, (F, 1 + 2 K)."""
    length: int = row.shape[1]
    return (length + 1) // 2


def reduce_rows(rows: Floats, top_k: int, candidates: Ids) -> Floats:
    """Reduces rows, (F, O), to the width that `width` gives. Returns a copy."""
    if top_k:
        return rank(rows, top_k, candidates)
    return log_probabilities(rows, candidates) if len(candidates) else rows.copy()


def log_probabilities(rows: Floats, targets: Ids) -> Floats:
    """Returns the logarithm of the softmax of each row, (F, O), at its target, (F, 1)."""
    # Row by row, because a copy of the rows of a long text would take hundreds of megabytes.
    differences = [row[None, target] - _total(row[None])[:, 0] for row, target in zip(rows, targets, strict=True)]
    return np.array(differences, np.float32).reshape(-1, 1)


def rank(rows: Floats, top_k: int, candidates: Ids) -> Floats:
    """Ranks rows, (F, O). The order of equal logits is unspecified."""
    indices = top(rows[:, candidates] if len(candidates) else rows, top_k)
    columns = candidates[indices] if len(candidates) else indices
    return np.concatenate([_total(rows), np.take_along_axis(rows, columns, axis=1), columns], axis=1, dtype=np.float32)


def _total(rows: Floats) -> Floats:
    """Returns the log of the sum of the exponentials of each row, (F, 1)."""
    largest = rows.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, and largest - smallest
        total = largest + np.log(np.exp(rows - largest).sum(axis=1, keepdims=True, dtype=np.float64))
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), total, np.nan)


def top(rows: Floats, top_k: int) -> Ids:
    """Returns the columns of the K largest logits of each row, (F, K), in descending order. K is at most `top_k`.

    The K largest logits are in the K groups with the largest maxima, so only these groups are ranked. For 30,522 logits
    and K = 5 this takes 55 µs instead of 480 µs.
    """
    top_k = min(top_k, rows.shape[1])
    groups = rows.shape[1] // GROUP
    if groups <= top_k:
        return _top(rows, top_k)
    grouped = GROUP * groups
    highest = rows[:, :grouped].reshape(len(rows), GROUP, groups).max(axis=1)
    members = _top(highest, top_k)[:, None, :] + groups * np.arange(GROUP)[:, None]  # (F, GROUP, K)
    rest = np.broadcast_to(np.arange(grouped, rows.shape[1]), (len(rows), rows.shape[1] - grouped))
    candidates = np.concatenate([members.reshape(len(rows), GROUP * top_k), rest], axis=1)
    order = _top(np.take_along_axis(rows, candidates, axis=1), top_k)
    return np.asarray(np.take_along_axis(candidates, order, axis=1))


def _top(rows: Floats, top_k: int) -> Ids:
    """Returns the same as `top`, without groups."""
    columns = np.argpartition(-rows, top_k - 1, axis=1)[:, :top_k]
    order = np.argsort(-np.take_along_axis(rows, columns, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(columns, order, axis=1))
