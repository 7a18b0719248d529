"""Replaced-token detection: which tokens did a generator insert? (Clark et al. 2020, arXiv:2003.10555)

The generator is a small masked language model. Samples of its predictions replace the masked tokens, and the
discriminator classifies each token as original or replaced. No gradient flows through the sampling.

The generator has the discriminator's architecture and depth, but is narrower (section 3.2). Both share the word
embeddings if these are as wide in both: in ALBERT and MobileBERT, whose embeddings are narrower than their layers, but
not in BERT. The position embeddings, which the paper shares too, are separate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_models.architectures.layers import ACTIVATIONS, Encoder
from swiftlet_models.architectures.settings import Settings
from swiftlet_models.heads import Model, build
from swiftlet_train.pretraining.objectives.masked_lm import Masked

DETECTION_WEIGHT: Final = 50.0  # of the discriminator's loss, beside 1 for the generator's
WIDTH_DIVISOR: Final = 2  # of the generator; the paper uses 2 to 4
WIDTHS: Final = ("hidden_size", "intra_bottleneck_size")


@dataclass(frozen=True, eq=False)
class Replaced:
    """Sequences with replaced tokens, and the label of each token."""

    input_ids: Tensor
    """(B, S)"""
    focus: Tensor
    """The positions b * S + s of all tokens except padding, (M,)."""
    labels: Tensor
    """1.0 for a replaced token, 0.0 for an original one, (M,)."""


class Discriminator(nn.Module):
    """A head with one logit per token, positive for tokens that seem replaced. Like `swiftlet_models.heads`."""

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.traits().activation]
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 1)
        for linear in (self.transform, self.output):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002  # all heads share one signature
        """(M, H) to (M, 1)."""
        out: Tensor = self.output(self.act(self.transform(rows)))
        return out


def generator_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the generator's configuration: half as wide, but not narrower than the word embeddings.

    Attention heads keep their width. There are fewer if such heads do not divide the generator's width.
    """
    narrow = {**config, "intermediate_size": config["intermediate_size"] // WIDTH_DIVISOR}
    widths = {name: config[name] // WIDTH_DIVISOR for name in WIDTHS if name in config}
    widths["hidden_size"] = max(widths["hidden_size"], config.get("embedding_size", 0))
    heads = math.gcd(max(1, config["num_attention_heads"] // WIDTH_DIVISOR), *widths.values())
    return {**narrow, **widths, "num_attention_heads": heads}


def make_generator(architecture: str, discriminator: Encoder) -> Model:
    """Makes an untrained generator. It shares the discriminator's word embeddings if the shapes match."""
    generator = build(architecture, generator_config(vars(discriminator.config)), "masked_lm")
    words = discriminator.embeddings.word
    if generator.encoder.embeddings.word.weight.shape == words.weight.shape:
        generator.encoder.embeddings.word = words
    return generator


def replace_tokens(
    masked: Masked, logits: Tensor, is_token: Tensor, *, first_word_id: int, generator: torch.Generator
) -> Replaced:
    """Replaces masked tokens with samples of the generator network's predictions.

    `logits` (N, V) are that network's predictions at `masked.focus`. `is_token` (B, S) is false for padding. A sample
    that equals the original token counts as original. Ids below `first_word_id` are never sampled.
    """
    cumulative = logits.detach().float()[:, first_word_id:].softmax(-1).cumsum(-1)
    # One random number per row, where `torch.multinomial` draws one per vocabulary entry: ten times faster.
    drawn = torch.rand(len(cumulative), 1, generator=generator, device=cumulative.device) * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=cumulative.shape[1] - 1)
    sampled = first_word_id + index
    ids = masked.input_ids.flatten().index_put((masked.focus,), sampled)
    is_replaced = (sampled != masked.targets).float()
    labels = torch.zeros(ids.shape, device=ids.device).index_put((masked.focus,), is_replaced)
    focus = is_token.flatten().nonzero()[:, 0]
    return Replaced(ids.view_as(masked.input_ids), focus, labels[focus])


def detection_loss(logits: Tensor, replaced: Replaced, weight: float = DETECTION_WEIGHT) -> Tensor:
    """Returns the weighted mean binary cross entropy over all tokens.

    `logits` (M, 1) are the discriminator's outputs at `replaced.focus`.
    """
    return weight * F.binary_cross_entropy_with_logits(logits[:, 0].float(), replaced.labels)
