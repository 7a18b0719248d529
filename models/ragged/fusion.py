"""Chooses the kernels of a network: on a CUDA device those in Triton, if they work there, and else those of torch."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from swiftlet_serve.models.ragged import in_torch
from swiftlet_serve.models.ragged.layout import Layout
from swiftlet_serve.models.ragged.network import Network

log = logging.getLogger(__name__)

TOLERANCE: Final = 0.05  # of the largest output: bf16 has 8 significant bits
LENGTHS: Final = (1, 7, 19)


@torch.inference_mode()
def use_triton(network: Network, device: torch.device) -> bool:
    """Gives a network the Triton kernels if they compute the same there as torch does. Returns whether it has them.

    A kernel is compiled when it first runs, for this device, so that a run is the only proof that it works.
    """
    kernels = _triton_kernels() if device.type == "cuda" else None
    if kernels is None:
        return False
    batch = Layout.of(_example(len(network.folded.words))).to(device)
    expected = network(batch).float()
    try:
        network.kernels = kernels
        error = (network(batch).float() - expected).abs().max() / expected.abs().max()
        if float(error) <= TOLERANCE:  # False if it is not a number
            return True
        log.error("the Triton kernels are not used: their outputs differ by %.3f of the largest", float(error))
    except Exception:  # a compiler documents no exceptions
        log.exception("the Triton kernels are not used")
    network.kernels = in_torch
    return False


def _triton_kernels() -> ModuleType | None:
    try:
        from swiftlet_serve.models.ragged import kernels
    except ImportError:
        log.warning("the network runs without Triton kernels, because the package triton is not installed")
        return None
    return kernels


class Example(NamedTuple):
    """A few sequences, with a position in focus at the start of each: see `layout.Ragged`."""

    input_ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    focus: NDArray[np.int64]
    focus_offsets: NDArray[np.int64]


def _example(vocabulary: int) -> Example:
    offsets = np.cumsum([0, *LENGTHS])
    ids = np.arange(offsets[-1]) * vocabulary // offsets[-1]
    return Example(ids, np.zeros_like(ids), offsets, np.zeros_like(LENGTHS), np.arange(len(offsets)))
