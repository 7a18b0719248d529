"""The rows of a batch from the network's outputs, on the device: only what a row holds is copied to the host.

All rows are reduced together: the number of launches does not grow with the number of sequences, and the indices go to
the device in one copy, and the rows to the host in another.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swiftlet_models.ragged.layout import Ragged

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class Reduced(Ragged, Protocol):
    """The parts of `swiftlet_serve.types.Batch` that say how rows are reduced: see `swiftlet_serve.types.topk`."""

    @property
    def top_k(self) -> NDArray[np.int64]: ...
    @property
    def candidates(self) -> NDArray[np.int64]: ...
    @property
    def candidate_offsets(self) -> NDArray[np.int64]: ...


def rows_of(outputs: Tensor, batch: Reduced) -> list[Floats]:
    """Returns the row of each sequence from the outputs at the N positions of all, (N, O)."""
    offers = batch.candidate_offsets[1:] - batch.candidate_offsets[:-1]  # M of each sequence
    if not (batch.top_k.any() or offers.any()):
        return _split(_to_host(outputs.float()), batch.focus_offsets.tolist())
    counts = np.diff(batch.focus_offsets)
    owner = np.repeat(np.arange(len(counts)), counts)  # (N,)
    ranked, restricted = batch.top_k[owner] > 0, offers[owner] > 0
    whole, free, chosen, scored = (
        np.flatnonzero(mask)
        for mask in (~ranked & ~restricted, ranked & ~restricted, ranked & restricted, ~ranked & restricted)
    )
    table = _candidates(batch, offers, owner[chosen])  # (C, M)
    targets = batch.candidates[batch.candidate_offsets[owner[scored]] + _places(batch, owner)[scored]]
    parts = [whole, free, chosen, table[0].ravel(), table[1].ravel(), scored, targets]
    moved = torch.from_numpy(np.concatenate(parts)).to(outputs.device)
    at_whole, at_free, at_chosen, columns, missing, at_scored, at_targets = torch.split(
        moved, [len(part) for part in parts]
    )
    wide = outputs.float()
    total = _total(wide)
    largest = int(batch.top_k.max())
    values, places = wide[at_free].topk(min(largest, wide.shape[1]), dim=1)
    columns, missing = columns.view(table[0].shape), missing.view(table[0].shape)
    offered = wide[at_chosen[:, None], columns].masked_fill(missing > 0, -torch.inf)
    offered_values, offered_found = offered.topk(min(largest, offered.shape[1]), dim=1)
    offered_columns = columns.gather(1, offered_found)
    log_probabilities = wide[at_scored, at_targets] - total[at_scored, 0]
    results = [wide[at_whole], total, values, places, offered_values, offered_columns, log_probabilities]
    flat = _to_host(torch.cat([part.flatten().float() for part in results]))
    pieces = np.split(flat, np.cumsum([part.numel() for part in results])[:-1])
    host = [piece.reshape(tuple(part.shape)) for piece, part in zip(pieces, results, strict=True)]
    return _assemble(batch, offers.tolist(), host)


def _assemble(batch: Reduced, offers: list[int], host: list[Floats]) -> list[Floats]:
    """Returns the rows from the parts that `rows_of` computes. Each part is in the order of the positions."""
    whole, total, values, places, offered_values, offered_columns, log_probabilities = host
    rows, done = [], dict.fromkeys(("whole", "free", "chosen", "scored"), 0)

    def take(kind: str, count: int) -> slice:
        done[kind] += count
        return slice(done[kind] - count, done[kind])

    for (start, end), k, candidates in zip(
        pairwise(batch.focus_offsets.tolist()), batch.top_k.tolist(), offers, strict=True
    ):
        count = end - start
        if k and candidates:
            here, width = take("chosen", count), min(k, candidates)
            parts = [total[start:end], offered_values[here, :width], offered_columns[here, :width]]
            rows.append(np.concatenate(parts, axis=1))
        elif k:
            here = take("free", count)
            rows.append(np.concatenate([total[start:end], values[here, :k], places[here, :k]], axis=1))
        elif candidates:
            rows.append(log_probabilities[take("scored", count), None].copy())
        else:
            rows.append(whole[take("whole", count)].copy())
    return rows


def _candidates(batch: Reduced, offers: Ids, owners: Ids) -> tuple[Ids, Ids]:
    """Returns the candidates of positions, and 1 where a sequence has fewer: both (C, M), M the most of all."""
    most = int(offers[owners].max(initial=0))
    places = np.arange(most)[None, :]
    missing = places >= offers[owners][:, None]
    index = np.where(missing, 0, batch.candidate_offsets[owners][:, None] + places)
    columns = batch.candidates[index] if len(batch.candidates) else index
    return columns, missing.astype(np.int64)


def _places(batch: Reduced, owner: Ids) -> Ids:
    """Returns the number of each position within its sequence, (N,)."""
    return np.arange(len(owner)) - batch.focus_offsets[owner]


def _total(rows: Tensor) -> Tensor:
    """Returns the logarithm of the sum of the exponentials of each row, (F, 1), or NaN if one is not finite.

    The order of the sum depends on the number of rows. In fp64 it makes no difference to the fp32 result.
    """
    if not len(rows):
        return rows.new_empty(0, 1)
    largest = rows.amax(1, keepdim=True)
    total = largest + (rows - largest).exp_().sum(1, keepdim=True, dtype=torch.float64).log().float()
    return total.where(rows.isfinite().all(1, keepdim=True), torch.nan)


def _split(rows: Floats, bounds: list[int]) -> list[Floats]:
    return [rows[start:end].copy() for start, end in pairwise(bounds)]


def _to_host(results: Tensor) -> Floats:
    """Copies rows to pinned memory of the host, which a device writes directly, and waits for the copy."""
    if results.device.type != "cuda":
        return results.numpy()
    host = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)  # torch keeps such memory for later calls
    host.copy_(results, non_blocking=True)
    torch.cuda.current_stream(results.device).synchronize()
    return host.numpy()
