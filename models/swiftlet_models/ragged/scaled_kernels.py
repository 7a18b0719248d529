"""Products in int8 or FP8 for GPUs since Hopper in Triton. Scales, bias and activation are applied to the sums.

A product takes two launches: the rows are scaled and rounded in one, and multiplied in the other. In torch, they are a
launch each to find the largest number, to divide, to round, to multiply and for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from swiftlet_models.architectures.layers import ACTIVATIONS
from swiftlet_models.ragged.rounded import LARGEST, Rounded

EPILOGUES: Final[Mapping[str | None, int]] = {None: 0, "relu": 1, "gelu": 2, "gelu_new": 3, "gelu_pytorch_tanh": 3}
"""The activations that the kernel of `multiply` applies, each with its number there. torch applies the others."""
GROUP: Final = 8
"""Blocks of rows whose programs run side by side, so that they share blocks of weights in the L2 cache."""


class Form(NamedTuple):
    """How a program of `multiply` divides its work."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


FEW: Final = Form(64, 64, 128, 4, 4)
MANY: Final = Form(128, 128, 64, 8, 4)
MANY_TOKENS: Final = 2048
"""The tokens from which on `MANY` is used. The sums of each form fit into registers. None was measured."""


def quantise(x: Tensor, small: torch.dtype) -> Rounded:
    """See `rounded`."""
    rows, width = x.shape
    found = Rounded(x.new_empty(x.shape, dtype=small), x.new_empty(rows, dtype=torch.float32))
    block = triton.next_power_of_2(width)
    warps = 1 if block <= 1024 else 4
    _quantise[(rows,)](
        x, *found, width, x.stride(0), LARGEST[small], rounds=small == torch.int8, block=block, num_warps=warps
    )
    return found


@triton.jit(do_not_specialize=["largest"])
def _quantise(x, small, step, width, stride, largest, rounds: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    wide = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    size = tl.maximum(tl.max(tl.abs(wide), 0), 1.1754943508222875e-38) / largest
    scaled = wide / size
    if rounds:  # fp32 has no fractions at this size: a sum is rounded to the nearest, and of two to the even one
        scaled = (scaled + 12582912.0) - 12582912.0
    tl.store(small + row * width + column, scaled.to(small.dtype.element_ty), mask=inside)
    tl.store(step + row, size)


def multiply(x: Rounded, weight: Rounded, bias: Tensor, activation: str | None, dtype: torch.dtype) -> Tensor:
    """See `rounded`."""
    (rows, depth), columns = x.rows.shape, len(weight.rows)
    form = MANY if rows >= MANY_TOKENS else FEW
    out = bias.new_empty(rows, columns, dtype=dtype)
    blocks_of = TensorDescriptor.from_tensor
    _multiply[(triton.cdiv(rows, form.rows) * triton.cdiv(columns, form.columns),)](
        blocks_of(x.rows, [form.rows, form.depth]),
        x.steps,
        blocks_of(weight.rows, [form.columns, form.depth]),
        weight.steps,
        bias,
        out,
        rows,
        columns,
        depth,
        activation=EPILOGUES.get(activation, 0),
        is_int=x.rows.dtype == torch.int8,
        block_rows=form.rows,
        block_columns=form.columns,
        block_depth=form.depth,
        group=GROUP,
        num_warps=form.warps,
        num_stages=form.stages,
    )
    return out if activation in EPILOGUES else ACTIVATIONS[str(activation)](out)


@triton.jit
def _multiply(
    small,
    step,
    weight,
    scales,
    bias,
    out,
    rows,
    columns,
    depth,
    activation: tl.constexpr,
    is_int: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_depth: tl.constexpr,
    group: tl.constexpr,
):
    """Blocks that reach beyond a matrix are filled with zeros by their descriptors."""
    down, across = tl.cdiv(rows, block_rows), tl.cdiv(columns, block_columns)
    program = tl.program_id(0)
    first = program // (group * across) * group
    high = tl.minimum(down - first, group)
    row = (first + program % (group * across) % high) * block_rows
    column = program % (group * across) // high * block_columns
    if is_int:
        sums = tl.zeros((block_rows, block_columns), tl.int32)
    else:
        sums = tl.zeros((block_rows, block_columns), tl.float32)
    for k in range(0, depth, block_depth):
        x, w = small.load([row, k]), weight.load([column, k])
        if is_int:  # noqa: SIM108  # a choice at compile time
            sums = tl.dot(x, w.T, sums, out_dtype=tl.int32)
        else:  # the matrix units add few bits exactly: each block's sum is added in fp32
            sums = tl.dot(x, w.T, sums, max_num_imprecise_acc=0)

    token = row.to(tl.int64) + tl.arange(0, block_rows)
    place = column + tl.arange(0, block_columns)
    y = sums.to(tl.float32) * tl.load(step + token, mask=token < rows, other=0.0)[:, None]
    y *= tl.load(scales + place, mask=place < columns, other=0.0)[None, :]
    y += tl.load(bias + place, mask=place < columns, other=0.0)[None, :]
    if activation == 1:
        y = tl.maximum(y, 0.0)
    if activation == 2:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if activation == 3:
        y *= tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))  # as x (1 + tanh(u)) / 2 = x sigmoid(2 u)
    inside = (token < rows)[:, None] & (place < columns)[None, :]
    tl.store(out + token[:, None] * columns + place[None, :], y.to(out.dtype.element_ty), mask=inside)
