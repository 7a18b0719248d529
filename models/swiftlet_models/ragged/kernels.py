"""Kernels for CUDA devices in Triton: each does in one launch the work between two large products or attentions.

A kernel reads its inputs once and writes its result once, and computes in fp32 between them. Shape letters: see
`swiftlet_models.architectures.layers`; T is the number of tokens. `in_torch.Kernels` describes the public functions.

A row's result depends on the row and on T alone, and not on its place in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from swiftlet_models.ragged import in_torch
from swiftlet_models.ragged.feed_forward import FeedForward
from swiftlet_models.ragged.layout import Places
from swiftlet_models.ragged.products import HOPPER

LEAST: Final = 16
"""The least height and width of a block that `tl.dot` multiplies."""
WIDEST: Final = 128
"""The widest rows that a program of `feed_forward` keeps in registers."""
HEADS: Final = (16, 32, 64, 128)
"""The widths of the heads that `attend` computes."""
QUERIES: Final = 64
"""Queries of a sequence that a program of `attend` computes at once."""
KEYS: Final = 64
"""Keys that it reads at once."""
PROGRAMS: Final = 528
"""The programs of `attend` that share the work: four for each multiprocessor of an H100."""


PLACES: Final = 128
"""Tokens, or positions in focus, that a program of `locate` finds the sequences of."""
ENDS: Final = 32
"""Cumulative lengths that it compares with them at once."""


class Form(NamedTuple):
    """How a program of `feed_forward` divides its work."""

    rows: int
    warps: int
    step: int
    """Columns of an inner product that it computes at once."""
    leave_step: int
    """Those of the product that leaves the layer."""
    stages: int
    """Blocks of weights on their way, the one that is multiplied included."""


FORMS: Final[Mapping[int, Form]] = {1: Form(16, 4, 128, 128, 3), 2049: Form(64, 4, 64, 64, 3)}
"""The forms of `feed_forward`, by the least tokens that one is used for. They were the fastest on an H200. With few
tokens, programs of few rows occupy many multiprocessors. With many tokens, a multiprocessor runs two programs."""
OLDER_FORMS: Final[Mapping[int, Form]] = {1: Form(16, 4, 128, 128, 3), 2049: Form(64, 8, 32, 32, 3)}
"""Those on GPUs before Hopper. Without its copy engine, the addresses of a block take registers."""


def form_of(tokens: int, device: torch.device) -> Form:
    """Returns the form of `feed_forward` for T tokens on a device."""
    is_older = device.type == "cuda" and torch.cuda.get_device_capability(device) < HOPPER
    forms = OLDER_FORMS if is_older else FORMS
    return forms[max(least for least in forms if tokens >= least)]


def has_blocks(width: int, intermediate: int, hidden: int) -> bool:
    """Returns whether the kernel of `feed_forward` can divide these sizes: C, I and H."""
    return (
        all(
            _divides(width, width) and _divides(form.step, intermediate) and _divides(form.leave_step, hidden)
            for form in (*FORMS.values(), *OLDER_FORMS.values())
        )
        and width <= WIDEST
    )


def _divides(step: int, size: int) -> bool:
    """Returns whether `tl.dot` can multiply blocks as wide as a step, or as a size that is smaller."""
    step = min(step, size)
    return step >= LEAST and step & (step - 1) == 0 and size % step == 0


def locate(ends: Tensor, focus_ends: Tensor, focus: Tensor, tokens: int) -> Places:
    """See `in_torch.Kernels`."""
    count = len(focus)
    positions, before, after = (ends.new_empty(tokens) for _ in range(3))
    found = Places(positions, before, after, ends.new_empty(count), ends.new_empty(count))
    blocks = triton.cdiv(tokens, PLACES), triton.cdiv(count, PLACES)
    _locate[(sum(blocks),)](
        ends, focus_ends, focus, *found, len(ends) - 1, tokens, count, blocks[0], block=PLACES, step=ENDS, num_warps=4
    )
    return found


@triton.jit(
    do_not_specialize=["sequences", "tokens", "count", "token_blocks"],
    do_not_specialize_on_alignment=["ends", "focus_ends", "focus"],  # parts of a buffer that lie anywhere in it
)
def _locate(
    ends,
    focus_ends,
    focus,
    positions,
    before,
    after,
    at,
    owner,
    sequences,
    tokens,
    count,
    token_blocks,
    block: tl.constexpr,
    step: tl.constexpr,
):
    program, place = tl.program_id(0), tl.arange(0, block)
    if program < token_blocks:
        token = program * block + place
        exists, inside = token < tokens, token < tl.load(ends + sequences)
        sequence = _ended_before(ends, token, sequences, block, step)
        start = tl.load(ends + sequence, mask=inside, other=0)
        stop = tl.load(ends + sequence + 1, mask=inside, other=0)
        position = tl.where(inside, token - start, 0)
        tl.store(positions + token, position, mask=exists)
        tl.store(before + token, tl.where(position > 0, token - 1, tokens), mask=exists)
        tl.store(after + token, tl.where(token + 1 < stop, token + 1, tokens), mask=exists)
    else:
        index = (program - token_blocks) * block + place
        exists, inside = index < count, index < tl.load(focus_ends + sequences)
        sequence = tl.where(inside, _ended_before(focus_ends, index, sequences, block, step), 0)
        token = tl.load(ends + sequence) + tl.load(focus + index, mask=inside, other=0)
        tl.store(at + index, tl.where(inside, token, 0), mask=exists)
        tl.store(owner + index, sequence, mask=exists)


@triton.jit
def _ended_before(ends, place, sequences, block: tl.constexpr, step: tl.constexpr):
    """Returns how many sequences end at or before each place, which is the number of the place's own sequence."""
    ended = tl.zeros((block,), tl.int32)
    for first in range(0, sequences, step):
        index = first + tl.arange(0, step)
        end = tl.load(ends + 1 + index, mask=index < sequences, other=2147483647)
        ended += tl.sum((end[None, :] <= place[:, None]).to(tl.int32), 1)
    return ended


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


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    longest: int,
    *,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """See `in_torch.Kernels`. Heads of other widths than `HEADS`, and windows, are computed by the kernel of torch.

    That kernel starts a program for every block of `longest` tokens of every sequence. A static batch has room for many
    sequences. Most of them are empty and the others short, so most programs would have no work.
    """
    tokens, heads, width = query.shape
    if width not in HEADS or window is not None:
        return in_torch.attend(query, key, value, ends, longest, causal=causal, window=window)
    out, sequences = query.new_empty(query.shape), len(ends) - 1
    blocks = triton.cdiv(tokens, QUERIES) + sequences  # at most
    _attend[(min(PROGRAMS, blocks * heads),)](
        query,
        key,
        value,
        out,
        ends,
        sequences,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        heads=heads,
        width=width,
        queries=QUERIES,
        keys=KEYS,
        capacity=triton.next_power_of_2(max(LEAST, sequences)),
        causal=causal,
        num_warps=4 if width <= 64 else 8,  # as many as its registers allow
        num_stages=3,
    )
    return out


@triton.jit(do_not_specialize=["sequences"])
def _attend(
    query,
    key,
    value,
    out,
    ends,
    sequences,
    query_stride,
    key_stride,
    value_stride,
    heads: tl.constexpr,
    width: tl.constexpr,
    queries: tl.constexpr,
    keys: tl.constexpr,
    capacity: tl.constexpr,
    causal: tl.constexpr,
):
    dtype = out.dtype.element_ty
    log2_e: tl.constexpr = 1.4426950408889634
    index = tl.arange(0, capacity)
    exists = index < sequences
    lengths = tl.load(ends + index + 1, mask=exists, other=0) - tl.load(ends + index, mask=exists, other=0)
    blocks = (lengths + queries - 1) // queries
    up_to = tl.cumsum(blocks, 0)  # those of a sequence and of the ones before it
    row, column, d = tl.arange(0, queries)[:, None], tl.arange(0, keys)[None, :], tl.arange(0, width)
    for item in range(tl.program_id(0), tl.sum(blocks, 0) * heads, tl.num_programs(0)):
        block, head = item // heads, item % heads
        is_before = up_to <= block
        sequence = tl.sum(is_before.to(tl.int32), 0)
        start, stop = tl.load(ends + sequence), tl.load(ends + sequence + 1)
        first = start + (block - tl.sum(tl.where(is_before, blocks, 0), 0)) * queries
        token = (first + row).to(tl.int64)
        place = head * width + d[None, :]
        q = tl.load(query + token * query_stride + place, mask=token < stop, other=0.0)
        largest = tl.full((queries,), float("-inf"), tl.float32)
        total = tl.zeros((queries,), tl.float32)
        y = tl.zeros((queries, width), tl.float32)
        last = stop
        if causal:
            last = tl.minimum(stop, first + queries)
        for n in range(start, last, keys):
            other_token = (n + column).to(tl.int64)
            at = key + other_token * key_stride + head * width + d[:, None]
            scores = tl.dot(q, tl.load(at, mask=other_token < stop, other=0.0), input_precision="ieee") * log2_e
            seen = other_token < stop
            if causal:
                seen = seen & (other_token <= token)
            scores = tl.where(seen, scores, float("-inf"))
            larger = tl.maximum(largest, tl.max(scores, 1))
            shrink = tl.exp2(largest - larger)
            p = tl.exp2(scores - larger[:, None])
            total = total * shrink + tl.sum(p, 1)
            other_token = (n + tl.arange(0, keys)[:, None]).to(tl.int64)
            v = tl.load(value + other_token * value_stride + place, mask=other_token < stop, other=0.0)
            y = tl.dot(p.to(dtype), v, y * shrink[:, None], input_precision="ieee")
            largest = larger
        tl.store(out + token * heads * width + place, (y / total[:, None]).to(dtype), mask=token < stop)


def feed_forward(layer: FeedForward, attended: Tensor, residual: Tensor, entered: Tensor) -> Tensor:
    """See `in_torch.Kernels`. Layers whose sizes are not divided into blocks are computed in torch.

    A program keeps its rows in registers from the first product to the last, so that the J networks read and write
    nothing but their weights, which all programs share in the L2 cache.
    """
    if not has_blocks(layer.width, layer.intermediate, layer.hidden):
        return in_torch.feed_forward(layer, attended, residual, entered)
    tokens, out = len(attended), torch.empty_like(entered)
    form = form_of(tokens, attended.device)
    step, leave_step = min(form.step, layer.intermediate), min(form.leave_step, layer.hidden)
    blocks_of, wide = TensorDescriptor.from_tensor, layer.width
    (output, *output_vectors), (inner, inner_bias) = layer.output, layer.inner
    (outer, *outer_vectors), (leave, *leave_vectors) = layer.outer, layer.leave
    _feed_forward[(triton.cdiv(tokens, form.rows),)](
        blocks_of(attended, [form.rows, wide]),
        blocks_of(residual, [form.rows, wide]),
        entered,
        out,
        blocks_of(output, [wide, wide]),
        *output_vectors,
        blocks_of(inner.flatten(0, 1), [wide, step]),
        inner_bias,
        blocks_of(outer.flatten(0, 1), [step, wide]),
        *outer_vectors,
        blocks_of(leave, [wide, leave_step]),
        *leave_vectors,
        tokens,
        networks=layer.networks,
        width=wide,
        intermediate=layer.intermediate,
        hidden=layer.hidden,
        rows=form.rows,
        step=step,
        leave_step=leave_step,
        num_warps=form.warps,
        num_stages=form.stages,
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
    networks: tl.constexpr,
    width: tl.constexpr,
    intermediate: tl.constexpr,
    hidden: tl.constexpr,
    rows: tl.constexpr,
    step: tl.constexpr,
    leave_step: tl.constexpr,
):
    """Matrices that are multiplied are descriptors, which the copy engine of a GPU since Hopper reads."""
    dtype = out.dtype.element_ty
    row = tl.program_id(0) * rows
    column = tl.arange(0, width)[None, :]
    kept = residual.load([row, 0]).to(tl.float32)
    y = tl.dot(attended.load([row, 0]), output_weight.load([0, 0]), input_precision="ieee")
    y += tl.load(output_bias + column).to(tl.float32) + kept * tl.load(output_gain + column).to(tl.float32)

    # One loop over the blocks of all networks, so that the weights of the next network are on their way while one ends.
    # Vectors are loaded a turn before they are added: nothing waits for them.
    blocks: tl.constexpr = intermediate // step
    some = tl.arange(0, step)[None, :]
    bias = tl.load(inner_bias + some)
    gain, shift = tl.load(outer_gain + column), tl.load(outer_bias + column)
    x = y.to(dtype)
    for block in range(networks * blocks):
        j = block // blocks
        if block % blocks == 0:
            x = y.to(dtype)
            y = y * gain.to(tl.float32) + shift.to(tl.float32)
            following = tl.minimum(j + 1, networks - 1) * width
            gain, shift = tl.load(outer_gain + following + column), tl.load(outer_bias + following + column)
        weight = inner_weight.load([j * width, block % blocks * step])
        inner = tl.dot(x, weight, input_precision="ieee") + bias.to(tl.float32)
        bias = tl.load(inner_bias + tl.minimum(block + 1, networks * blocks - 1) * step + some)
        y = tl.dot(tl.maximum(inner, 0.0).to(dtype), outer_weight.load([block * step, 0]), y, input_precision="ieee")

    x = y.to(dtype)
    token = row.to(tl.int64) + tl.arange(0, rows)[:, None]
    inside = token < tokens
    part = tl.arange(0, leave_step)[None, :]
    before = tl.load(entered + token * hidden + part, mask=inside, other=0.0)
    bias, gain = tl.load(leave_bias + part), tl.load(leave_gain + part)
    for n in range(0, hidden, leave_step):
        z = tl.dot(x, leave_weight.load([0, n]), input_precision="ieee")
        z += bias.to(tl.float32) + before.to(tl.float32) * gain.to(tl.float32)
        following = tl.minimum(n + leave_step, hidden - leave_step) + part
        before = tl.load(entered + token * hidden + following, mask=inside, other=0.0)
        bias, gain = tl.load(leave_bias + following), tl.load(leave_gain + following)
        tl.store(out + token * hidden + n + part, z.to(dtype), mask=inside)


def _warps(width: int) -> int:
    return 1 if width <= 1024 else 4 if width <= 2048 else 8
