"""Parts of every network: attention, activations, the padding mask, and the base classes.

Shape letters, the same in every file: B sequences, S tokens of the longest sequence, H hidden size, C width inside a
layer, E embedding size, I intermediate size, A attention heads, D = C / A, L layers, V vocabulary, N focus positions of
all sequences, O outputs of a head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_models.architectures.settings import Settings

# GELU has an exact form and the tanh form of the original BERT code (Hendrycks and Gimpel 2016, arXiv:1606.08415,
# section 2). The names are those that checkpoints use.
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class AttentionMethod(ABC):
    """Another way to compute the attention of a batch, instead of a bias."""

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
        """Returns (B, S, C) for query, key and value (B, S, C)."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, S, C) -> (B, A, S, D)"""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | AttentionMethod) -> Tensor:
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, sections 3.2.1 and 3.2.2).

    query, key and value are (B, S, C). bias is added to the scores and broadcasts to (B, A, S, S). Returns (B, S, C).
    """
    if isinstance(bias, AttentionMethod):
        return bias.attend(query, key, value, heads)
    q, k, v = (split_heads(x, heads) for x in (query, key, value))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + bias  # (B, A, S, S)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def _excluding(excluded: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the lowest number where a key is excluded, and 0 elsewhere."""
    return torch.zeros(excluded.shape, dtype=dtype, device=excluded.device).masked_fill(
        excluded, torch.finfo(dtype).min
    )


def rotate(x: Tensor, turns: Tensor, heads: int) -> Tensor:
    """Turns each head's columns of x (B, S, C), as `program.Rotate` describes. `turns` is (P, D)."""
    cos, sin = turns[: x.shape[1], None].to(x.dtype).chunk(2, 2)  # (S, 1, D / 2)
    first, second = x.view(*x.shape[:2], heads, 2, -1).unbind(3)  # (B, S, A, D / 2)
    return torch.stack([first * cos - second * sin, second * cos + first * sin], 3).flatten(2)


def window_bias(size: int, window: int, like: Tensor) -> Tensor:
    """Returns an attention bias (1, 1, S, S) that excludes tokens at a larger distance than window // 2."""
    positions = torch.arange(size, device=like.device)
    return _excluding((positions[None, :] - positions[:, None]).abs() > window // 2, like.dtype)[None, None]


def relative_bias(
    query: Tensor, key: Tensor, heads: int, rows: Tensor, keys: Tensor | None, queries: Tensor | None
) -> Tensor:
    """Returns what `program.Relative` adds to the scores, (B, A, S, S).

    query and key are (B, S, C), rows (2 P - 1,), and keys and queries (R, C).
    """
    size = query.shape[1]
    places = torch.arange(size, device=query.device)
    chosen = rows[places[None, :] - places[:, None] + len(rows) // 2]  # (S, S)

    def met(x: Tensor, table: Tensor, chosen: Tensor) -> Tensor:
        met = split_heads(x, heads) @ split_heads(table[None], heads).transpose(2, 3)  # (B, A, S, R)
        return met.gather(3, chosen.expand(*met.shape[:3], size))

    bias = query.new_zeros(())
    if keys is not None:
        bias = bias + met(query, keys, chosen)
    if queries is not None:
        bias = bias + met(key, queries, chosen.T).transpose(2, 3)
    return bias


def padding_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turns a mask of real tokens (B, S) into an attention bias (B, 1, 1, S) that excludes padding."""
    return _excluding(~mask, dtype)[:, None, None, :]


def causal_bias(size: int, like: Tensor) -> Tensor:
    """Returns an attention bias (1, 1, S, S) that excludes the tokens after each token."""
    positions = torch.arange(size, device=like.device)
    return _excluding(positions[None, :] > positions[:, None], like.dtype)[None, None]


def position_bias(table: Tensor, boundaries: Sequence[int], size: int) -> Tensor:
    """Returns the attention bias (1, A, S, S) of `traits.PositionBias` for sequences of S tokens."""
    distances = torch.arange(1 - size, size, device=table.device)  # from a query to a key
    buckets = (len(boundaries) + 1) * (distances > 0).long()
    for boundary in boundaries:
        buckets = buckets + (distances.abs() >= boundary)
    # A sum instead of a look-up, whose table ONNX Runtime's stock quantisation of an exported graph puts into int8.
    chosen = buckets[:, None] == torch.arange(len(table), device=table.device)
    by_distance = (chosen[:, :, None] * table).sum(1)  # (2 S - 1, A)
    positions = torch.arange(size, device=table.device)
    return by_distance[positions[None, :] - positions[:, None] + size - 1].permute(2, 0, 1)[None]


def linear_bias(slopes: Tensor, size: int) -> Tensor:
    """Returns the attention bias (1, A, S, S) of `traits.LinearBias` for sequences of S tokens."""
    positions = torch.arange(size, device=slopes.device, dtype=slopes.dtype)
    return -slopes[:, None, None] * (positions[None, :] - positions[:, None]).abs()[None, None]


class Embeddings(nn.Module, ABC):
    """Maps tokens to the first hidden states. The masked-LM head shares the word table."""

    word: nn.Embedding
    position: nn.Embedding


class Layer(nn.Module, ABC):
    """One layer of a network. Query, key and value map to the width inside the layer."""

    heads: int
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear


class Encoder(nn.Module, ABC):
    """Maps tokens to hidden states."""

    config: Settings
    embeddings: Embeddings

    @abstractmethod
    def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
        """Returns the embeddings and the output of every layer, each (B, S, H).

        input_ids and token_type_ids are (B, S). mask (B, S) is true on real tokens.
        """

    @property
    def max_tokens(self) -> int:
        """The length of the longest sequence: the number of positions from the first token's on."""
        traits = self.config.traits().embedding
        if not traits.positions:
            return self.config.max_position_embeddings
        return self.embeddings.position.num_embeddings - traits.position_offset

    def applied_layers(self) -> list[Layer]:
        """Returns the layers in the order of their application. A shared layer occurs once for each application."""
        modules = [self.get_submodule(name) for name in self.config.traits().layers]
        return [layer for layer in modules if isinstance(layer, Layer)]

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> Tensor:
        """Returns the last layer's output, (B, S, H)."""
        return self.features(input_ids, token_type_ids, mask)[-1]
