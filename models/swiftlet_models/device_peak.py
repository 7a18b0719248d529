"""The rate of a large product on a device, which the speed of a network is related to."""

from __future__ import annotations

import time
from typing import Final

import torch

SIZE: Final = 8192  # of the square matrices
CALLS: Final = 20


def measured_peak(device: torch.device, size: int = SIZE) -> float:
    """Returns the best rate of a square product in bf16, or in fp32 on the CPU, in multiply-adds per second."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(CALLS):
        _synchronize(device)
        started = time.perf_counter()
        left @ right
        _synchronize(device)
        best = max(best, size**3 / (time.perf_counter() - started))
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
