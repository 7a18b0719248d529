"""Attention over a ragged batch: T tokens of B sequences, end to end.

query is (Q, A, D), and key and value are (T, A, D): A heads of width D. The cumulative lengths (B + 1,) int32 say where
each sequence's queries and keys begin and end. The scores are not scaled, because folding has scaled the query.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn_out

from swiftlet_models.architectures.layers import relative_bias
from swiftlet_models.ragged.layout import Keys

MULTIPLE: Final = 8
"""The kernel's heads are as wide as multiples of this."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    longest: int,
    *,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Returns the attended values, (Q, A, D). Those of queries beyond the last sequence's are undefined.

    `longest` is at least the length of the longest sequence. With `causal` or a `window`, as `program.Attend` describes
    them, a sequence has as many queries as keys. On a CUDA device, query, key and value are in fp16 or bf16.
    """
    compute = attend_with_kernel if query.device.type == "cuda" else attend_by_sequence
    return compute(query, key, value, ends_q, ends_k, longest, causal=causal, window=window)


def attend_with_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    longest: int,
    *,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Returns the same as `attend` on a CUDA device since Ampere, with flash attention."""
    width, reach = query.shape[2], -1 if window is None else window // 2
    if missing := -width % MULTIPLE:
        query, key, value = (F.pad(x, (0, missing)) for x in (query, key, value))
    out = query.new_empty(query.shape)  # without `out`, torch fills a state of random numbers in each call
    varlen_attn_out(
        out,
        query,
        key,
        value,
        ends_q,
        ends_k,
        longest,
        longest,
        scale=1.0,
        window_size=(reach, 0) if causal else (reach, reach),
        num_splits=1,  # so that a sequence's values do not depend on its batch
    )
    return out[:, :, :width] if missing else out


def attend_by_sequence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    longest: int,
    *,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Returns the same as `attend` on any device, sequence by sequence: the reference of its kernel.

    Undefined values are NaN, so that tests see where they go. A longer sequence than `longest` raises ValueError, since
    the kernel would leave a part of it out.
    """
    out = torch.full_like(query, math.nan)
    queries, keys = ends_q.tolist(), ends_k.tolist()
    for first, last, begin, end in zip(queries, queries[1:], keys, keys[1:], strict=False):
        if max(last - first, end - begin) > longest:
            raise ValueError(f"a sequence has {end - begin} tokens, more than {longest}")
        if last > first:
            q, k, v = (x.transpose(0, 1) for x in (query[first:last], key[begin:end], value[begin:end]))
            mask = None if window is None else _allowed(_distances(end - begin, query.device), causal, window)
            attended = F.scaled_dot_product_attention(q, k, v, mask, scale=1.0, is_causal=causal and mask is None)
            out[first:last] = attended.transpose(0, 1)
    return out


def attend_with_bias(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    longest: int,
    table: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    keys: Keys | None = None,
) -> Tensor:
    """Returns the attended values of a network with a position bias: (T, A, D), for queries at every token.

    No kernel for ragged batches adds a bias, so attention is padded to the longest sequence here.

    Args:
        query, key, value: (T, A, D).
        ends: cumulative lengths of the B sequences, (B + 1,).
        longest: S, the length of the longest sequence.
        table: `position_bias` of `swiftlet_models.folded`, (A, 2 P - 1).
        causal, window: as in `program.Attend`.
        keys: the tokens to attend to; None: all of a sequence.
    """
    places = torch.arange(longest, device=query.device)
    starts, lengths = ends[:-1, None], ends.diff()[:, None]  # (B, 1)
    tokens = (starts + torch.minimum(places, lengths - 1)).clamp_(min=0)  # (B, S)
    distances = _distances(longest, query.device)
    bias = table[:, distances + table.shape[1] // 2].to(query.dtype)  # (A, S, S)
    allowed = _is_key(places, lengths, keys)[:, None, None, :]  # (B, 1, 1, S)
    allowed = allowed & _allowed(distances, causal, window)
    q, k, v = (x[tokens].transpose(1, 2) for x in (query, key, value))  # (B, A, S, D)
    lowest = torch.finfo(query.dtype).min
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.where(allowed, lowest), scale=1.0)
    real = places < lengths  # (B, S)
    return attended.transpose(1, 2)[real]


def attend_with_distances(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    longest: int,
    rows: Tensor,
    keys: Tensor | None,
    queries: Tensor | None,
    attended: Keys | None = None,
) -> Tensor:
    """Returns the attended values (T, A, D) of a network whose scores depend on distances, as `program.Relative` says.

    Attention is padded to the longest sequence, as with a bias. rows is (2 P - 1,), and keys and queries (R, A D).
    """
    places = torch.arange(longest, device=query.device)
    starts, lengths = ends[:-1, None], ends.diff()[:, None]  # (B, 1)
    tokens = (starts + torch.minimum(places, lengths - 1)).clamp_(min=0)  # (B, S)
    heads, real = query.shape[1], places < lengths  # (B, S)
    wide_query, wide_key = (x[tokens].flatten(2) for x in (query, key))
    bias = relative_bias(wide_query, wide_key, heads, rows, keys, queries)
    bias = bias.where(_is_key(places, lengths, attended)[:, None, None, :], torch.finfo(query.dtype).min)
    q, k, v = (x[tokens].transpose(1, 2) for x in (query, key, value))  # (B, A, S, D)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0).transpose(1, 2)[real]


def _is_key(places: Tensor, lengths: Tensor, keys: Keys | None) -> Tensor:
    """Returns which places of padded sequences hold tokens to attend to, (B, S)."""
    return places < (lengths if keys is None else keys.ends.diff()[:, None])


def _distances(length: int, device: torch.device) -> Tensor:
    """Returns the distances from each query to each key of a sequence, (S, S)."""
    places = torch.arange(length, device=device)
    return places[None, :] - places[:, None]


def _allowed(distances: Tensor, causal: bool, window: int | None) -> Tensor:
    """Returns whether a query may attend to a key at these distances."""
    allowed = distances <= 0 if causal else torch.ones_like(distances, dtype=torch.bool)
    return allowed if window is None else allowed & (distances.abs() <= window // 2)
