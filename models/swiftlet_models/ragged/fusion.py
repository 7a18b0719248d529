"""Chooses the kernels of a network: Triton's on a CUDA device, if they work there, and otherwise torch's."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from swiftlet_models.ragged import in_torch
from swiftlet_models.ragged.layout import Layout
from swiftlet_models.ragged.network import Network

log = logging.getLogger(__name__)

LAUNCHER: Final = Path(sys.prefix) / "lib" / "triton_launcher.so"  # docker/Dockerfile builds it
TOLERANCE: Final = 0.05  # of the largest output: bf16 has 8 significant bits
LENGTHS: Final = (1, 7, 19)
"""Lengths of the sequences of an example. Further examples have more of them, for kernels that depend on the tokens."""


@torch.inference_mode()
def use_triton(network: Network, device: torch.device) -> bool:
    """Gives a network the Triton kernels if they compute the same there as torch does. Returns whether it has them.

    A kernel is compiled when it first runs, for this device, so that a run is the only proof that it works. It runs in
    each of its forms: a device may have too little shared memory for some.
    """
    kernels = _triton_kernels() if device.type == "cuda" else None
    if kernels is None:
        return False
    try:
        for least in kernels.FORMS:
            example = _example(network.vocabulary, -(-least // sum(LENGTHS)))
            error = _difference(network, kernels, Layout.of(example).to(device))
            if not error <= TOLERANCE:  # also if it is not a number
                log.error("the Triton kernels are not used: their outputs differ by %.3f of the largest", error)
                return False
    except Exception:  # a compiler documents no exceptions
        log.exception("the Triton kernels are not used")
        return False
    network.kernels = kernels
    return True


def _difference(network: Network, kernels: ModuleType, batch: Layout) -> float:
    """Returns the largest difference of a batch's outputs with the kernels, relative to the largest output."""
    expected = network(batch).float()
    try:
        network.kernels = kernels
        return float((network(batch).float() - expected).abs().max() / expected.abs().max())
    finally:
        network.kernels = in_torch


def _triton_kernels() -> ModuleType | None:
    try:
        from swiftlet_models.ragged import kernels
    except ImportError:
        log.warning("the network runs without Triton kernels, because the package triton is not installed")
        return None
    _use_prebuilt_launcher()
    return kernels


def _use_prebuilt_launcher() -> None:
    """Gives Triton the module that launches its kernels, if it is there: Triton would need a C compiler to build it."""
    if LAUNCHER.is_file():
        knobs = import_module("triton.knobs")
        knobs.build.impl = lambda *_: str(LAUNCHER)


class Example(NamedTuple):
    """A few sequences, with a position in focus at the start of each: see `layout.Ragged`."""

    input_ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    focus: NDArray[np.int64]
    focus_offsets: NDArray[np.int64]
    attended: NDArray[np.int64]
    given: None = None


def _example(vocabulary: int, count: int) -> Example:
    lengths = count * LENGTHS
    offsets = np.cumsum([0, *lengths])
    ids = np.arange(offsets[-1]) * vocabulary // offsets[-1]
    return Example(ids, np.zeros_like(ids), offsets, np.zeros_like(lengths), np.arange(len(offsets)), np.diff(offsets))
