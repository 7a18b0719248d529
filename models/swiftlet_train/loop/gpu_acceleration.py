"""Faster training steps on a GPU: layers without padding, and compiled layers. The parameters are those of the model.

A batch is padded for its embeddings only. Its tokens then go through the layers end to end, and attention gets their
cumulative lengths. Networks whose attention depends on positions keep their padding.

Each layer is compiled for itself. The layers of a network have the same code, which is compiled once for any lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from swiftlet_models.architectures.layers import AttentionMethod, Encoder, Layer

MULTIPLE: Final = 8  # flash attention computes heads of such widths


@dataclass(frozen=True)
class Packing(AttentionMethod):
    """The places of a batch's T tokens in a padded batch of B sequences, (B, S)."""

    index: Tensor  # (T,): b * S + s
    ends: Tensor  # (B + 1,) int32: cumulative lengths
    longest: int  # at least the length of the longest sequence

    @classmethod
    def of(cls, mask: Tensor, longest: int) -> Packing:
        """Returns the places of the tokens where mask (B, S) is true."""
        ends = F.pad(mask.sum(1).cumsum(0), (1, 0)).int()
        return cls(mask.flatten().nonzero()[:, 0], ends, longest)

    def take(self, x: Tensor) -> Tensor:
        """Removes the padding, (B, S, H) -> (1, T, H)."""
        return x.flatten(0, 1)[self.index][None]

    def spread(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """Adds padding of zeros, (1, T, H) -> (B, S, H)."""
        padded = x.new_zeros(rows * columns, x.shape[2]).index_copy(0, self.index, x[0])
        return padded.view(rows, columns, x.shape[2])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
        """Returns the attention of each sequence to itself, (1, T, C). On a GPU the inputs are in bf16 or fp16."""
        q, k, v = (x[0].view(x.shape[1], heads, x.shape[2] // heads) for x in (query, key, value))
        if query.device.type == "cuda":
            attended = varlen_attn(q, k, v, self.ends, self.ends, self.longest, self.longest)
            out = attended if isinstance(attended, Tensor) else attended[0]
        else:
            out = self._by_sequence(q, k, v)
        return out.flatten(1)[None]

    def _by_sequence(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The reference of the kernel: (T, A, D)."""
        lengths = self.ends.diff().tolist()
        parts = zip(*(torch.split(x.transpose(0, 1), lengths, 1) for x in (query, key, value)), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*part) for part in parts], 1).transpose(0, 1)


@contextmanager
def packed(encoder: Encoder) -> Iterator[None]:
    """Lets an encoder's `forward` compute its layers without padding. `features` stays as it is."""
    current: list[Packing] = []

    def take(_module: nn.Module, _args: Any, x: Tensor) -> Tensor:
        return current[-1].take(x) if current else x

    def replace_bias(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0], current[-1], *args[2:]) if current else args

    def forward(input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> Tensor:
        current.append(Packing.of(mask, encoder.max_tokens))
        try:
            last = encoder.features(input_ids, token_type_ids, mask)[-1]
            return current[-1].spread(last, *input_ids.shape)
        finally:
            current.pop()

    hooks = [encoder.embeddings.register_forward_hook(take)]
    hooks += [layer.register_forward_pre_hook(replace_bias) for layer in set(encoder.applied_layers())]
    encoder.forward = forward  # type: ignore[method-assign]  # until the context ends
    try:
        yield
    finally:
        del encoder.forward
        for hook in hooks:
            hook.remove()


@contextmanager
def compiled(model: nn.Module, **options: Any) -> Iterator[None]:
    """Compiles the layers of a model within the context. `options` are those of `torch.compile`."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    # Hooks record attention for a while only. By default, compiled code ignores those that came after it.
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        for layer in layers:
            layer.compile(dynamic=True, **options)
        try:
            yield
        finally:
            for layer in layers:
                layer._compiled_call_impl = None


def can_be_packed(encoder: Encoder) -> bool:
    """Returns whether the layers of an encoder can be computed without padding."""
    traits = encoder.config.traits()
    widths = {layer.query.out_features // layer.heads for layer in encoder.applied_layers()}
    depends_on_positions = any((traits.causal, traits.position_bias, traits.relative, traits.attention))
    return not depends_on_positions and all(width % MULTIPLE == 0 for width in widths)
