"""The products of a network in torch: in floats, in int8, or in FP8.

A product maps x (T, K) to x W^T + b (T, N). In int8 and FP8, weights have one scale for each output and activations one
for each token, as on the CPU, so that a token's result does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_models.architectures.layers import ACTIVATIONS
from swiftlet_models.folded import Product

Linear = Callable[[Tensor], Tensor]
MakeProduct = Callable[[Product, torch.device, torch.dtype, str | None], Linear]
"""Puts a product on a device, with the name of the activation that follows it, if any. The data type is that of the
activations."""

EPILOGUES: Final = {"relu": False, "gelu": True, "gelu_new": True, "gelu_pytorch_tanh": True}
"""Activations that cuBLAS applies to its sums before it writes them, and whether it is the tanh form of GELU.

The exact form differs from it by less than 0.0005, where bf16 rounds values of 1 to 0.004. A kernel of its own would
read and write the widest activations of a layer again.
"""

LEAST_ROWS: Final = 32  # cuBLAS multiplies int8 matrices with more than 16 rows
MULTIPLE: Final = 8  # and widths that are multiples of this
LARGEST: Final = 127
FP8: Final = torch.float8_e4m3fn
FP8_MULTIPLE: Final = 16  # widths that a GPU multiplies in FP8: those since Ada


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
    if any(width % MULTIPLE for width in product.weight.shape):
        return in_floats(product, device, dtype, activation)
    floats = torch.tensor(product.weight).float()
    scale = floats.abs().amax(1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny) / LARGEST  # (N, 1)
    weight = (floats / scale).round_().to(torch.int8).to(device).t()  # (K, N), as cuBLAS reads it
    activate = ACTIVATIONS[activation] if activation else nn.Identity()
    scales, bias = scale[:, 0].to(device), torch.tensor(product.bias).to(device, torch.float32)

    def multiply(x: Tensor) -> Tensor:
        rows, wide = len(x), x.float()
        step = wide.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST  # (T, 1)
        small = (wide / step).round().to(torch.int8)
        if rows < LEAST_ROWS:
            small = F.pad(small, (0, 0, 0, LEAST_ROWS - rows))
        sums = torch._int_mm(small, weight)[:rows]  # the only int8 product that torch has
        return activate(sums * step * scales + bias).to(dtype)

    return multiply


def in_fp8(product: Product, device: torch.device, dtype: torch.dtype, activation: str | None = None) -> Linear:
    """Multiplies in FP8 and adds in fp32. Products whose widths the device does not support stay in floats."""
    if any(width % FP8_MULTIPLE for width in product.weight.shape):
        return in_floats(product, device, dtype, activation)
    floats = torch.tensor(product.weight).float()
    tiny, largest = torch.finfo(torch.float32).tiny, torch.finfo(FP8).max
    scales = floats.abs().amax(1, keepdim=True).clamp_(min=tiny) / largest  # (N, 1)
    weight = (floats / scales).to(FP8).to(device).t()  # (K, N), as the device reads it
    scales, bias = scales.t().contiguous().to(device), torch.tensor(product.bias).to(device, dtype)
    activate = ACTIVATIONS[activation] if activation else nn.Identity()

    def multiply(x: Tensor) -> Tensor:
        wide = x.float()
        step = wide.abs().amax(1, keepdim=True).clamp(min=tiny) / largest  # (T, 1)
        small = (wide / step).to(FP8)
        # torch has no public name for it.
        return activate(torch._scaled_mm(small, weight, scale_a=step, scale_b=scales, out_dtype=dtype) + bias)

    return multiply
