"""Causal language modelling: each token is predicted from the tokens before it (Radford et al. 2018 and 2019, GPT).

The network must be causal, so that no token sees the one that it predicts.
"""

from __future__ import annotations

from torch import Tensor

from swiftlet_train.pretraining.objectives.masked_lm import Masked
from swiftlet_train.pretraining.objectives.sentence_pairs import PAD_ID


def predict_next(sequences: Tensor) -> Masked:
    """Returns the sequences (B, S) unchanged, with every token but the first of each as a target.

    `focus` holds the position before each target. Separators are targets as well, but not padding.
    """
    followed = sequences != PAD_ID
    followed[:, :-1] = followed[:, 1:].clone()
    followed[:, -1] = False
    focus = followed.flatten().nonzero()[:, 0]
    return Masked(sequences, focus, sequences.flatten()[focus + 1])
