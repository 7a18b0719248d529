"""Kernels for CUDA devices in Triton: each does in one launch the work between two large products or attentions.

A kernel reads its inputs once and writes its result once, and computes in fp32 between them. Shape letters are those of
`models.architectures.layers`, and T is the number of tokens. `in_torch.Kernels` describes the public functions.

A row's result depends on the row and on T alone, and not on its place in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftlet_serve.models.ragged import in_torch
from swiftlet_serve.models.ragged.feed_forward import FeedForward

LEAST: Final = 16
"""The least height and width of a block that `tl.dot` multiplies."""
WIDEST: Final = 128
"""The widest rows that a program of `feed_forward` keeps in registers."""
STEP: Final = 64
"""Columns of an inner product, and of the product that leaves the layer, that it computes at once."""
HEIGHTS: Final[Mapping[int, int]] = {1: 16, 1025: 64, 8193: 128}
"""The rows of a program of `feed_forward`, by the least tokens that it is used for."""
STAGES: Final = 3
"""Blocks of weights on their way, the one that is multiplied included."""


def warps_of(rows: int) -> int:
    """Returns the warps of a program of `feed_forward`."""
    return 8 if rows == 128 else 4


def height(tokens: int) -> int:
    """Returns the rows of a program of `feed_forward` for T tokens: enough programs for all multiprocessors."""
    return max(rows for least, rows in HEIGHTS.items() if tokens >= least)


def has_blocks(width: int, intermediate: int, hidden: int) -> bool:
    """Returns whether the kernel of `feed_forward` can divide these sizes: C, I and H."""
    steps = width, min(STEP, intermediate), min(STEP, hidden)
    return (
        width <= WIDEST
        and all(step >= LEAST and step & (step - 1) == 0 for step in steps)
        and intermediate % steps[1] == hidden % steps[2] == 0
    )


def layer_norm(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """See `in_torch.Kernels`."""
    out, (rows, width) = torch.empty_like(x), x.shape
    _layer_norm[(rows,)](
        x,
        x if residual is None else residual,
        weight,
        bias,
        out,
        width,
        width if residual is None else residual.stride(0),
        epsilon,
        has_residual=residual is not None,
        block=triton.next_power_of_2(width),
        num_warps=_warps(width),
    )
    return out


@triton.jit
def _layer_norm(
    x, residual, weight, bias, out, width, residual_stride, epsilon, has_residual: tl.constexpr, block: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    start = token * width
    column = tl.arange(0, block)
    inside = column < width
    row = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
    if has_residual:
        row += tl.load(residual + token * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
    row = _normalised(row, inside, weight, bias, column, width, epsilon)
    tl.store(out + start + column, row.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _normalised(row, inside, weight, bias, column, width, epsilon):
    centred = tl.where(inside, row - tl.sum(row, 0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + epsilon)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    return centred * scale * gain + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)


def add_embeddings(
    x: Tensor,
    input_ids: Tensor | None,
    positions: Tensor,
    position_table: Tensor,
    token_types: tuple[Tensor, Tensor] | None,
    norm: tuple[Tensor, Tensor, float] | None,
) -> Tensor:
    """See `in_torch.Kernels`."""
    rows, width = len(positions), x.shape[1]
    out = x.new_empty(rows, width)
    type_ids, type_table = token_types or (positions, position_table)
    weight, bias, epsilon = norm or (x, x, 0.0)
    _add_embeddings[(rows,)](
        x,
        positions if input_ids is None else input_ids,
        positions,
        position_table,
        type_ids,
        type_table,
        weight,
        bias,
        out,
        width,
        epsilon,
        has_ids=input_ids is not None,
        has_types=token_types is not None,
        has_norm=norm is not None,
        block=triton.next_power_of_2(width),
        num_warps=_warps(width),
    )
    return out


@triton.jit
def _add_embeddings(
    x,
    input_ids,
    positions,
    position_table,
    type_ids,
    type_table,
    weight,
    bias,
    out,
    width,
    epsilon,
    has_ids: tl.constexpr,
    has_types: tl.constexpr,
    has_norm: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    first = token
    if has_ids:
        first = tl.load(input_ids + token).to(tl.int64)
    row = tl.load(x + first * width + column, mask=inside, other=0.0).to(tl.float32)
    position = tl.load(positions + token).to(tl.int64)
    row += tl.load(position_table + position * width + column, mask=inside, other=0.0).to(tl.float32)
    if has_types:
        kind = tl.load(type_ids + token).to(tl.int64)
        row += tl.load(type_table + kind * width + column, mask=inside, other=0.0).to(tl.float32)
    if has_norm:
        row = _normalised(row, inside, weight, bias, column, width, epsilon)
    tl.store(out + token * width + column, row.to(out.dtype.element_ty), mask=inside)


def window(words: Tensor, input_ids: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """See `in_torch.Kernels`."""
    tokens, width = len(input_ids), words.shape[1]
    out = words.new_empty(tokens, 3 * width)
    _window[(tokens, 3)](
        words,
        input_ids,
        before,
        after,
        out,
        tokens,
        width,
        block=triton.next_power_of_2(width),
        num_warps=_warps(width),
    )
    return out


@triton.jit
def _window(words, input_ids, before, after, out, tokens, width, block: tl.constexpr):
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, block)
    source = token
    if part == 0:
        source = tl.load(after + token).to(tl.int64)
    if part == 2:
        source = tl.load(before + token).to(tl.int64)
    exists = source < tokens  # T: there is no neighbour
    word = tl.load(input_ids + source, mask=exists, other=0).to(tl.int64)
    row = tl.load(words + word * width + column, mask=(column < width) & exists, other=0.0)
    tl.store(out + token * 3 * width + part * width + column, row, mask=column < width)


def feed_forward(layer: FeedForward, attended: Tensor, residual: Tensor, entered: Tensor) -> Tensor:
    """See `in_torch.Kernels`. Layers whose sizes are not divided into blocks are computed in torch.

    A program keeps its rows in registers from the first product to the last, so that the J networks read and write
    nothing but their weights, which all programs share in the L2 cache.
    """
    if not has_blocks(layer.width, layer.intermediate, layer.hidden):
        return in_torch.feed_forward(layer, attended, residual, entered)
    tokens = len(attended)
    rows = height(tokens)
    out = torch.empty_like(entered)
    _feed_forward[(triton.cdiv(tokens, rows),)](
        attended,
        residual,
        entered,
        out,
        *layer.output,
        *layer.inner,
        *layer.outer,
        *layer.leave,
        tokens,
        attended.stride(0),
        residual.stride(0),
        networks=layer.networks,
        width=layer.width,
        intermediate=layer.intermediate,
        hidden=layer.hidden,
        rows=rows,
        step=min(STEP, layer.intermediate),
        leave_step=min(STEP, layer.hidden),
        num_warps=warps_of(rows),
        num_stages=STAGES,
    )
    return out


@triton.jit
def _feed_forward(
    attended,
    residual,
    entered,
    out,
    output_weight,
    output_bias,
    output_gain,
    inner_weight,
    inner_bias,
    outer_weight,
    outer_bias,
    outer_gain,
    leave_weight,
    leave_bias,
    leave_gain,
    tokens,
    attended_stride,
    residual_stride,
    networks: tl.constexpr,
    width: tl.constexpr,
    intermediate: tl.constexpr,
    hidden: tl.constexpr,
    rows: tl.constexpr,
    step: tl.constexpr,
    leave_step: tl.constexpr,
):
    dtype = out.dtype.element_ty
    token = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    inside = token < tokens
    column = tl.arange(0, width)[None, :]
    k = tl.arange(0, width)[:, None]
    x = tl.load(attended + token * attended_stride + column, mask=inside, other=0.0)
    kept = tl.load(residual + token * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.dot(x, tl.load(output_weight + k * width + column), input_precision="ieee")
    y += tl.load(output_bias + column).to(tl.float32) + kept * tl.load(output_gain + column).to(tl.float32)

    some, inner_k = tl.arange(0, step)[None, :], tl.arange(0, step)[:, None]
    for j in range(networks):
        x = y.to(dtype)
        y = y * tl.load(outer_gain + j * width + column).to(tl.float32)
        y += tl.load(outer_bias + j * width + column).to(tl.float32)
        for i in range(0, intermediate, step):
            weight = tl.load(inner_weight + j * width * intermediate + k * intermediate + i + some)
            inner = tl.dot(x, weight, input_precision="ieee")
            inner += tl.load(inner_bias + j * intermediate + i + some).to(tl.float32)
            weight = tl.load(outer_weight + j * width * intermediate + (i + inner_k) * width + column)
            y = tl.dot(tl.maximum(inner, 0.0).to(dtype), weight, y, input_precision="ieee")

    x = y.to(dtype)
    part = tl.arange(0, leave_step)[None, :]
    for n in range(0, hidden, leave_step):
        z = tl.dot(x, tl.load(leave_weight + k * hidden + n + part), input_precision="ieee")
        before = tl.load(entered + token * hidden + n + part, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(leave_bias + n + part).to(tl.float32) + before * tl.load(leave_gain + n + part).to(tl.float32)
        tl.store(out + token * hidden + n + part, z.to(dtype), mask=inside)


def _warps(width: int) -> int:
    return 1 if width <= 256 else 4 if width <= 2048 else 8
