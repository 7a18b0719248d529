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
from swiftlet_models.ragged.rounded import FP8, Multiply, Quantise, Rounded, multiply, quantise

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

TOLERANCE: Final = 0.02  # of the largest number, between two ways to add up
HOPPER: Final = (9, 0)  # capability of the first GPUs whose copy engine reads descriptors
MULTIPLE: Final = 16  # widths that GPUs multiply in 8 bits: in FP8, those since Ada


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
    weight = Rounded(*(part.to(device) for part in quantise(torch.tensor(product.weight).float(), small)))
    bias = torch.tensor(product.bias).to(device, torch.float32)
    functions: tuple[Quantise, Multiply] = quantise, multiply
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER:
        functions = _kernels(device, small) or functions
    quantised, product_of = functions
    return lambda x: product_of(quantised(x, small), weight, bias, activation, dtype)


@cache
def _kernels(device: torch.device, small: torch.dtype) -> tuple[Quantise, Multiply] | None:
    """Returns the functions of `scaled_kernels` if the device computes with them what `rounded` does."""
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
    """Returns how much the results of functions differ from those of `rounded`, relative to the largest number."""
    x, weight = (
        torch.sin(torch.arange(count * 64, device=device)).view(count, 64).to(torch.bfloat16) for count in (rows, 48)
    )
    bias = weight[:, 0].float()
    # In bf16, because that is what torch multiplies scaled rows to on a GPU.
    found, expected = (
        product_of(quantised(x, small), quantise(weight, small), bias, "gelu", torch.bfloat16).float()
        for quantised, product_of in (functions, (quantise, multiply))
    )
    return float((found - expected).abs().max() / expected.abs().max())
