"""The rows of a batch from the network's outputs, on the device: only what a row holds is copied to the host."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swiftlet_serve.models.ragged.layout import Ragged

Floats = NDArray[np.float32]


class Reduced(Ragged, Protocol):
    """The parts of `service.types.Batch` that say how rows are reduced: see `service.topk`."""

    @property
    def top_k(self) -> NDArray[np.int64]: ...
    @property
    def candidates(self) -> NDArray[np.int64]: ...
    @property
    def candidate_offsets(self) -> NDArray[np.int64]: ...


def rows_of(outputs: Tensor, batch: Reduced) -> list[Floats]:
    """Returns the row of each sequence from the outputs at the N positions of all, (N, O)."""
    bounds, first = batch.focus_offsets.tolist(), batch.candidate_offsets.tolist()
    spans = list(pairwise(bounds))
    reduced = [bool(k) or first[b + 1] > first[b] for b, k in enumerate(batch.top_k.tolist())]
    if not any(reduced):
        found = outputs.float().cpu().numpy()
        return [found[start:end].copy() for start, end in spans]
    parts = []
    for b, (start, end) in enumerate(spans):
        part = outputs[start:end].float()
        columns = torch.from_numpy(batch.candidates[first[b] : first[b + 1]]).to(outputs.device)
        if batch.top_k[b]:
            part = _ranked(part, int(batch.top_k[b]), columns)
        elif len(columns):
            part = part.gather(1, columns[:, None]) - _total(part)
        parts.append(part)
    # One copy for all rows.
    flat = torch.cat([part.flatten() for part in parts]).cpu().numpy()
    pieces = np.split(flat, np.cumsum([part.numel() for part in parts])[:-1])
    return [piece.reshape(tuple(part.shape)).copy() for piece, part in zip(pieces, parts, strict=True)]


def _ranked(rows: Tensor, top_k: int, candidates: Tensor) -> Tensor:
    """Returns the total, the K largest logits and their columns, (F, 1 + 2 K)."""
    chosen = rows[:, candidates] if len(candidates) else rows
    largest, found = chosen.topk(min(top_k, chosen.shape[1]), dim=1)
    columns = candidates[found] if len(candidates) else found
    return torch.cat([_total(rows), largest, columns.float()], 1)


def _total(rows: Tensor) -> Tensor:
    """Returns the logarithm of the sum of the exponentials of each row, (F, 1), or NaN if one is not finite."""
    finite = rows.isfinite().all(1, keepdim=True)
    return rows.logsumexp(1, keepdim=True).where(finite, torch.nan)
