"""Faster training steps on a CPU: attention with scores in bf16, and a dropout that draws fewer random bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_models.architectures.layers import AttentionMethod, Encoder, split_heads

MULTIPLE: Final = 32  # torch's softmax in bf16 takes the numbers beyond such a multiple one by one


@dataclass(frozen=True)
class Bf16Attention(AttentionMethod):
    """Attention with scores and weights in bf16.

    Under autocast, a bias in float32 and the softmax turn the scores into float32. These are by far the largest tensors
    of a step, so that the copies cost more than the products.
    """

    bias: Tensor  # (B or 1, A or 1, S or 1, S rounded up to a multiple), in bf16

    @classmethod
    def of(cls, bias: Tensor) -> Bf16Attention:
        """Takes a bias that broadcasts to (B, A, S, S)."""
        lowest = torch.finfo(torch.bfloat16).min
        limited = bias.clamp(min=lowest).to(torch.bfloat16)  # the lowest float32 would be infinite
        return cls(F.pad(limited, (0, -bias.shape[-1] % MULTIPLE), value=lowest))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
        """Returns the attention within each sequence, (B, S, C). The inputs are in bf16."""
        missing = self.bias.shape[-1] - key.shape[1]
        key, value = (F.pad(x, (0, 0, 0, missing)) for x in (key, value))
        scaled = query / math.sqrt(query.shape[2] // heads)
        q, k, v = (split_heads(x, heads) for x in (scaled, key, value))
        with torch.autocast(query.device.type, enabled=False):
            weights = (q @ k.transpose(2, 3) + self.bias).softmax(-1)  # (B, A, S, S rounded up)
            return (weights @ v).transpose(1, 2).flatten(2)


@contextmanager
def attending_in_bf16(encoder: Encoder) -> Iterator[None]:
    """Lets an encoder's layers attend in bf16."""
    last: tuple[Tensor, Bf16Attention] | None = None  # all layers of a network have the same bias

    def replace_bias(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal last
        x, bias, *others = args
        if last is None or last[0] is not bias:
            last = bias, Bf16Attention.of(bias)
        return x, last[1], *others

    hooks = [layer.register_forward_pre_hook(replace_bias) for layer in set(encoder.applied_layers())]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def dropout(x: Tensor, probability: float) -> Tensor:
    """Returns x with some of its numbers 0 and the others scaled up (Srivastava et al. 2014, section 4), in any shape.

    The probability is exact to 1/65536. torch's own function draws the numbers one by one on a CPU. That takes three
    times as long, and a quarter of a step of BERT.
    """
    seed = int(torch.randint(2**62, ()))  # so that `torch.manual_seed` decides
    bits = np.random.PCG64DXSM(seed).random_raw(x.numel() // 4 + 1).view(np.int16)[: x.numel()]
    kept = torch.from_numpy(bits) >= round(probability * 2**16) - 2**15
    return x * kept.view(x.shape).to(x.dtype).div_(1 - probability)


@contextmanager
def dropping_faster(module: nn.Dropout) -> Iterator[None]:
    """Lets a module use `dropout`."""
    original = module.forward

    def forward(x: Tensor) -> Tensor:
        return dropout(x, module.p) if module.training and 0 < module.p < 1 else original(x)

    module.forward = forward  # type: ignore[method-assign, assignment]  # until the context ends
    try:
        yield
    finally:
        del module.forward
