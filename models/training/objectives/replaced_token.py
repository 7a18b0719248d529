"""Replaced-token detection: which tokens did a generator network make up? (Clark et al. 2020, arXiv:2003.10555)

A small network learns to fill masks. What it fills them with, sampled, is what a discriminator reads, and has to tell
apart from what was there. Nothing is learned through the sampling.

The generator is the discriminator's likeness, as deep but thinner (section 3.2), and both read one word table wherever
a thinner network may have one as wide: ALBERT and MobileBERT, whose tables are narrower than their layers, but not
BERT. Position tables, which the paper shares too, are each network's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_serve.models.architectures.layers import ACTIVATIONS, Config, Encoder
from swiftlet_serve.models.heads import Model, build
from swiftlet_serve.models.training.objectives.masked_lm import Masked

WEIGHT: Final = 50.0  # of the discriminator's loss, beside a generator's of 1
THINNER: Final = 2  # times is the generator; the paper's are 2 to 4 times
WIDTHS: Final = ("hidden_size", "intra_bottleneck_size")


@dataclass(frozen=True, eq=False)
class Replaced:
    """Rows with replacements, and what the discriminator should say of each real token."""

    input_ids: Tensor  # (B, S)
    focus: Tensor  # (M,): positions b * S + s that are no padding
    labels: Tensor  # (M,): 1.0 where the token is not the one that was there, else 0.0


class Discriminator(nn.Module):
    """One logit for each row, above zero where the token seems replaced: a head like those of `models.heads`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.hidden_act]
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 1)
        for linear in (self.transform, self.output):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002  # every head is called alike
        """(M, H) to (M, 1)."""
        out: Tensor = self.output(self.act(self.transform(rows)))
        return out


def thin(config: Mapping[str, Any]) -> dict[str, Any]:
    """The generator's configuration: narrower, but no narrower than the word table, and with heads as wide as before.

    Where such heads would not divide the width, there are fewer.
    """
    made = {**config, "intermediate_size": config["intermediate_size"] // THINNER}
    widths = {name: config[name] // THINNER for name in WIDTHS if name in config}
    widths["hidden_size"] = max(widths["hidden_size"], config.get("embedding_size", 0))
    heads = math.gcd(max(1, config["num_attention_heads"] // THINNER), *widths.values())
    return {**made, **widths, "num_attention_heads": heads}


def make_generator(architecture: str, discriminator: Encoder) -> Model:
    """An untrained generator for a discriminator, with its word table where it is as wide."""
    made = build(architecture, thin(vars(discriminator.config)), "masked_lm")
    words = discriminator.embeddings.word
    if made.encoder.embeddings.word.weight.shape == words.weight.shape:
        made.encoder.embeddings.word = words
    return made


def replace(masked: Masked, logits: Tensor, real: Tensor, *, special: int, generator: torch.Generator) -> Replaced:
    """Fills the holes of masked rows with words sampled from the generator network's distribution.

    `logits` (N, V) are that network's at `masked.focus`; `real` (B, S) is false for padding. A word that is sampled
    and is the one that was there counts as original. Ids below `special` are never put in.
    """
    heights = logits.detach().float()[:, special:].softmax(-1).cumsum(-1)
    # One number a row, where `torch.multinomial` draws one for each word of the vocabulary: ten times faster.
    drawn = torch.rand(len(heights), 1, generator=generator, device=heights.device) * heights[:, -1:]
    sampled = special + torch.searchsorted(heights, drawn, right=True)[:, 0].clamp(max=heights.shape[1] - 1)
    rows = masked.input_ids.flatten().index_put((masked.focus,), sampled)
    labels = torch.zeros(rows.shape, device=rows.device).index_put((masked.focus,), (sampled != masked.targets).float())
    focus = real.flatten().nonzero()[:, 0]
    return Replaced(rows.view_as(masked.input_ids), focus, labels[focus])


def detection_loss(logits: Tensor, replaced: Replaced, weight: float = WEIGHT) -> Tensor:
    """The mean binary cross entropy over all real tokens, replaced or not, times its weight.

    `logits` (M, 1) are the discriminator's at `replaced.focus`.
    """
    return weight * F.binary_cross_entropy_with_logits(logits[:, 0].float(), replaced.labels)
