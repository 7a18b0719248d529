"""The products of a network in torch: in floats, in int8, or in FP8.

A product maps x (T, K) to x W^T + b (T, N). In int8 and FP8, weights have one scale for each output and activations one
for each token, as on the CPU, so that a token's result does not depend on its batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_models.architectures.layers import ACTIVATIONS
from swiftlet_models.folded import Product

log = logging.getLogger(__name__)

Linear = Callable[[Tensor], Tensor]
MakeProduct = Callable[[Product, torch.device, torch.dtype, str | None], Linear]
"""Puts a product on a device, with the name of the activation that follows it, if any. The data type is that of the
activations."""

EPILOGUES: Final = {"relu": False, "gelu": True, "gelu_new": True, "gelu_pytorch_tanh": True}
"""Activations that cuBLAS applies to its sums before it writes them, and whether it is the tanh form of GELU.

The exact form differs from it by less than 0.0005, where bf16 rounds values of 1 to 0.004. A kernel of its own would
read and write the widest activations of a layer again.
"""

Quantise = Callable[[Tensor, torch.dtype, float], tuple[Tensor, Tensor]]
Multiply = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, str | None, torch.dtype], Tensor]
"""See `quantise` and `multiply`."""

TOLERANCE: Final = 0.02  # of the largest number, between two ways to add up
LEAST_ROWS: Final = 32  # cuBLAS multiplies int8 matrices with more than 16 rows
HOPPER: Final = (9, 0)  # capability of the first GPUs whose copy engine reads descriptors
MULTIPLE: Final = 16  # widths that GPUs multiply in 8 bits: in FP8, those since Ada
FP8: Final = torch.float8_e4m3fn
LARGEST: Final = {torch.int8: 127.0, FP8: torch.finfo(FP8).max}


def in_floats(product: Product, device: torch.device, dtype: torch.dtype, activation: str | None = None) -> Linear:
    """Multiplies in the data type of the activations."""
    weight, bias = (torch.tensor(array).to(device, dtype) for array in (product.weight, product.bias))
    if activation is None:
        return lambda x: F.linear(x, weight, bias)
    if device.type == "cuda" and activation in EPILOGUES:
        turned, use_gelu = weight.t(), EPILOGUES[activation]
        return lambda x: torch._addmm_activation(bias, x, turned, use_gelu=use_gelu)  # torch has no public name for it
    activate = ACTIVATIONS[activation]
    return lambda x: activate(F.linear(x, weight, bias))


def in_int8(product: Product, device: torch.device, dtype: torch.dtype, activation: str | None = None) -> Linear:
    """Multiplies in int8 and adds in int32. Products whose widths the device does not support stay in floats."""
    return _in_8_bits(product, device, dtype, activation, torch.int8)


def in_fp8(product: Product, device: torch.device, dtype: torch.dtype, activation: str | None = None) -> Linear:
    """Multiplies in FP8 and adds in fp32. Products whose widths the device does not support stay in floats."""
    return _in_8_bits(product, device, dtype, activation, FP8)


def _in_8_bits(
    product: Product, device: torch.device, dtype: torch.dtype, activation: str | None, small: torch.dtype
) -> Linear:
    if any(width % MULTIPLE for width in product.weight.shape):
        return in_floats(product, device, dtype, activation)
    weight, scales = (part.to(device) for part in quantise(torch.tensor(product.weight).float(), small, LARGEST[small]))
    bias = torch.tensor(product.bias).to(device, torch.float32)
    scaled: tuple[Quantise, Multiply] = quantise, multiply
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER:
        scaled = _kernels(device, small) or scaled
    rounded, product_of = scaled
    return lambda x: product_of(*rounded(x, small, LARGEST[small]), weight, scales, bias, activation, dtype)


@cache
def _kernels(device: torch.device, small: torch.dtype) -> tuple[Quantise, Multiply] | None:
    """Returns the functions of `scaled_kernels` if they compute the same as those of this module there."""
    try:
        from swiftlet_models.ragged import scaled_kernels as kernels

        for rows in (1, kernels.MANY_TOKENS):
            error = difference((kernels.quantise, kernels.multiply), rows, device, small)
            if not error <= TOLERANCE:  # also if it is not a number
                log.error("products in 8 bits are computed in torch: the kernels differ by %.3f of the largest", error)
                return None
    except Exception:  # a compiler documents no exceptions
        log.exception("products in 8 bits are computed in torch")
        return None
    return kernels.quantise, kernels.multiply


def difference(functions: tuple[Quantise, Multiply], rows: int, device: torch.device, small: torch.dtype) -> float:
    """Returns how much the functions differ from those of this module, relative to the largest number."""
    x, weight = (
        torch.sin(torch.arange(count * 64, device=device)).view(count, 64).to(torch.bfloat16) for count in (rows, 48)
    )
    (own_weight, scales), bias = quantise(weight, small, LARGEST[small]), weight[:, 0].float()
    found, expected = (
        product_of(*rounded(x, small, LARGEST[small]), own_weight, scales, bias, "gelu", torch.float32)
        for rounded, product_of in (functions, (quantise, multiply))
    )
    return float((found - expected).abs().max() / expected.abs().max())


def quantise(x: Tensor, small: torch.dtype, largest: float) -> tuple[Tensor, Tensor]:
    """Scales each row so that its largest number becomes `largest`, and rounds it.

    Returns:
        The rows in int8 or FP8, (T, K), and what to multiply each with for the numbers of x, (T,) in fp32.
    """
    wide = x.float()
    step = wide.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny) / largest
    scaled = wide / step
    return (scaled.round_() if small == torch.int8 else scaled).to(small), step[:, 0]


def multiply(
    small: Tensor,
    step: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor,
    activation: str | None,
    dtype: torch.dtype,
) -> Tensor:
    """Returns the activation of x W^T + b in a data type, (T, N).

    Args:
        small, step: x, as `quantise` returns it, (T, K) and (T,).
        weight, scales: W likewise, (N, K) and (N,).
        bias: (N,) in fp32.
        activation: its name, if there is one.
        dtype: of the result.
    """
    if small.dtype == torch.int8:
        rows = len(small)
        if rows < LEAST_ROWS:
            small = F.pad(small, (0, 0, 0, LEAST_ROWS - rows))
        sums = torch._int_mm(small, weight.t())[:rows]  # the only int8 product that torch has
        y = sums * step[:, None] * scales
    else:  # torch has no public name for it
        y = torch._scaled_mm(small, weight.t(), scale_a=step[:, None], scale_b=scales[None, :], out_dtype=dtype).float()
    y += bias
    return (ACTIVATIONS[activation](y) if activation else y).to(dtype)
