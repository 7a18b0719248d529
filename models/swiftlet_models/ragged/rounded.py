"""Matrices in 8 bits and their products, in torch: what `scaled_kernels` computes in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_models.architectures.layers import ACTIVATIONS

LEAST_ROWS: Final = 32  # cuBLAS multiplies int8 matrices with more than 16 rows
FP8: Final = torch.float8_e4m3fn
LARGEST: Final = {torch.int8: 127.0, FP8: torch.finfo(FP8).max}


class Rounded(NamedTuple):
    """The rows of a matrix in 8 bits."""

    rows: Tensor  # (T, K), in int8 or FP8
    steps: Tensor  # (T,), in fp32: what to multiply each row with


Quantise = Callable[[Tensor, torch.dtype], Rounded]
Multiply = Callable[[Rounded, Rounded, Tensor, str | None, torch.dtype], Tensor]
"""See `quantise` and `multiply`."""


def quantise(x: Tensor, small: torch.dtype) -> Rounded:
    """Scales each row of x (T, K) so that its largest number becomes the largest one of the type, and rounds it."""
    wide = x.float()
    step = wide.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny) / LARGEST[small]
    scaled = wide / step
    return Rounded((scaled.round_() if small == torch.int8 else scaled).to(small), step[:, 0])


def multiply(x: Rounded, weight: Rounded, bias: Tensor, activation: str | None, dtype: torch.dtype) -> Tensor:
    """Returns the activation of x W^T + b in a data type, (T, N).

    Args:
        x: (T, K).
        weight: W, (N, K).
        bias: (N,) in fp32.
        activation: its name, if there is one.
        dtype: of the result.
    """
    (small, step), (other, scales) = x, weight
    if small.dtype == torch.int8:
        rows = len(small)
        if rows < LEAST_ROWS:
            small = F.pad(small, (0, 0, 0, LEAST_ROWS - rows))
        sums = torch._int_mm(small, other.t())[:rows]  # the only int8 product that torch has
        y = sums * step[:, None] * scales
    else:  # torch has no public name for it
        y = torch._scaled_mm(small, other.t(), scale_a=step[:, None], scale_b=scales[None, :], out_dtype=dtype).float()
    y += bias
    return (ACTIVATIONS[activation](y) if activation else y).to(dtype)
