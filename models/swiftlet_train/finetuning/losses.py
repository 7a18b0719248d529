"""The losses of fine-tuning, from logits as `task_logits` returns them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_train.examples.example import NO_LABEL, Example


def label_loss(logits: Tensor, examples: Sequence[Example]) -> Tensor:
    """Returns the mean cross entropy of the targets: of texts, of the start and end of answers, or of tokens.

    With only one label, a target is 1 if the label applies, or else 0. A target without label adds 0 to the mean.
    """
    labels = [label for example in examples for label in example.target]
    targets = torch.tensor(labels, device=logits.device).view(-1, *logits.shape[2:])  # (B,), (B, 2) or (N,)
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits, targets[:, None].to(logits.dtype))
    losses = F.cross_entropy(logits, targets, ignore_index=NO_LABEL, reduction="sum")
    return losses / targets.numel()


def distillation_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Returns the mean KL divergence from the teacher's softened predictions, times T², over start and end for answers.

    The factor T² keeps the size of the gradient independent of the temperature (Hinton et al. 2015, section 2).
    """
    ours, theirs = ((x / temperature).log_softmax(1) for x in (logits, teacher))
    divergence: Tensor = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(1)
    return temperature**2 * divergence.mean()
