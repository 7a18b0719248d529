"""The operations of a network between its products and attentions, in torch. They run on every device.

`Kernels` also describes the same functions of `swiftlet_models.ragged.kernels`, which are in Triton.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_models.ragged import attention
from swiftlet_models.ragged.feed_forward import FeedForward
from swiftlet_models.ragged.layout import Places


class Kernels(Protocol):
    """The functions of this module."""

    def locate(self, ends: Tensor, focus_ends: Tensor, focus: Tensor, tokens: int) -> Places:
        """Returns where T tokens and N positions in focus are.

        Args:
            ends, focus_ends: cumulative lengths (B + 1,) of sequences, and of their positions in focus.
            focus: the positions' places in their sequences, (N,).
            tokens: T, with those beyond the last sequence.
        """
        ...

    def layer_norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """Returns the LayerNorm of x (T, H), or of its sum with the residual (T, H).

        The residual's rows may lie in a wider matrix.
        """
        ...

    def add_embeddings(
        self,
        x: Tensor,
        input_ids: Tensor | None,
        positions: Tensor,
        position_table: Tensor,
        token_types: tuple[Tensor, Tensor] | None,
        norm: tuple[Tensor, Tensor, float] | None,
    ) -> Tensor:
        """Returns the sum of words, positions and token types, (T, H).

        Args:
            x: the word table (V, H), or with no ids the projected words (T, H).
            input_ids: (T,).
            positions: (T,).
            position_table: (P, H).
            token_types: ids (T,) and a table, if they have rows of their own.
            norm: weight, bias and epsilon of a LayerNorm of the sum.
        """
        ...

    def window(self, words: Tensor, input_ids: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Returns the words of each token's right neighbour, of itself and of its left neighbour, (T, 3 E).

        Args:
            words: the word table, (V, E).
            input_ids: (T,).
            before, after: the neighbours' places (T,); T, which gives zeros, without a neighbour.
        """
        ...

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        ends: Tensor,
        longest: int,
        *,
        causal: bool = False,
        window: int | None = None,
    ) -> Tensor:
        """Returns the attended values for queries at every token, (T, A, D). See `attention.attend`."""
        ...

    def feed_forward(self, layer: FeedForward, attended: Tensor, residual: Tensor, entered: Tensor) -> Tensor:
        """Returns what leaves a layer with a bottleneck, (T, H).

        Args:
            layer: its weights.
            attended: the attended values, (T, C).
            residual: (T, C), whose rows may lie in a wider matrix.
            entered: the hidden states that entered the layer, (T, H).
        """
        ...


def locate(ends: Tensor, focus_ends: Tensor, focus: Tensor, tokens: int) -> Places:
    """See `Kernels`."""
    token, place = (torch.arange(count, dtype=torch.int32, device=ends.device) for count in (tokens, len(focus)))
    sequence, owner = (
        torch.searchsorted(all_ends[1:], index, right=True) for all_ends, index in ((ends, token), (focus_ends, place))
    )
    last = len(ends) - 1  # the sequence of tokens that belong to none
    positions = (token - ends[sequence]).where(sequence < last, 0)
    has_after = token + 1 < ends[(sequence + 1).clamp(max=last)]
    return Places(
        positions,
        (token - 1).where(positions > 0, tokens),
        (token + 1).where(has_after, tokens),
        (ends[owner] + focus).where(owner < last, 0),
        owner.int().where(owner < last, 0),
    )


def layer_norm(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """See `Kernels`."""
    return F.layer_norm(x if residual is None else x + residual, (x.shape[1],), weight, bias, epsilon)


def add_embeddings(
    x: Tensor,
    input_ids: Tensor | None,
    positions: Tensor,
    position_table: Tensor,
    token_types: tuple[Tensor, Tensor] | None,
    norm: tuple[Tensor, Tensor, float] | None,
) -> Tensor:
    """See `Kernels`."""
    x = (x if input_ids is None else x[input_ids]) + position_table[positions]
    if token_types is not None:
        x = x + token_types[1][token_types[0]]
    return x if norm is None else layer_norm(x, None, *norm)


def window(words: Tensor, input_ids: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """See `Kernels`."""
    x = words[input_ids]
    padded = F.pad(x, (0, 0, 0, 1))
    return torch.cat([padded[after], x, padded[before]], 1)


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
    """See `Kernels`."""
    return attention.attend(query, key, value, ends, ends, longest, causal=causal, window=window)


def feed_forward(layer: FeedForward, attended: Tensor, residual: Tensor, entered: Tensor) -> Tensor:
    """See `Kernels`."""
    y = _multiply_add(attended, residual, *layer.output)
    for inner_weight, inner_bias, *outer in zip(*layer.inner, *layer.outer, strict=True):
        inner = torch.addmm(inner_bias, y, inner_weight).relu_()
        y = _multiply_add(inner, y, *outer)
    return _multiply_add(y, entered, *layer.leave)


def _multiply_add(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, gain: Tensor) -> Tensor:
    return torch.addcmul(torch.addmm(bias, x, weight), residual, gain)
