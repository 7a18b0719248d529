"""The losses of fine-tuning.

Dimension 1 holds the choices: labels (B, O), or the positions of an answer's start and end (B, S, 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from swiftlet_serve.models.heads import Model, TokenOutput
from swiftlet_serve.models.training.examples import NO_LABEL, Example, collate

EXCLUDED: Final = torch.finfo(torch.float32).min  # the logit of a position that cannot be chosen

Logits = NDArray[np.float32]
"""The logits of one example, (F, O), at its F focus positions."""


def task_logits(model: Model, examples: Sequence[Example]) -> Tensor:
    """Returns the logits of labels (B, O), or of the start and end positions of an answer (B, S, 2).

    As when served, an answer can only be at [CLS] or in the context, and the labels of a causal network are read at the
    last token, which alone has seen the whole text.
    """
    device = next(model.parameters()).device
    ids, types, lengths = collate(examples, device)
    if isinstance(model.head, TokenOutput):
        rows: Tensor = model(ids, types, lengths, torch.arange(ids.numel(), device=device)).float()
        allowed = torch.zeros(ids.shape, dtype=torch.bool)
        allowed[:, 0] = True
        for row, example in enumerate(examples):
            allowed[row, example.context.start : example.context.stop] = True
        return rows.view(*ids.shape, 2).masked_fill(~allowed.to(device)[:, :, None], EXCLUDED)
    focus = torch.arange(len(examples), device=device) * ids.shape[1]
    if model.encoder.config.traits().causal:
        focus = focus + lengths - 1
    out: Tensor = model(ids, types, lengths, focus).float()
    return out


def label_loss(logits: Tensor, examples: Sequence[Example]) -> Tensor:
    """Returns the mean cross entropy of the targets, over start and end for answers.

    With only one label, a target is 1 if the label applies, or else 0. Unlabelled examples contribute 0 to the mean.
    """
    targets = torch.tensor([example.target for example in examples], device=logits.device)  # (B, 1) or (B, 2)
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
    losses = F.cross_entropy(logits, targets.squeeze(1), ignore_index=NO_LABEL, reduction="sum")
    return losses / targets.numel()


def distillation_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Returns the mean KL divergence from the teacher's softened predictions, times T², over start and end for answers.

    The factor T² keeps the size of the gradient independent of the temperature (Hinton et al. 2015, section 2).
    """
    ours, theirs = ((x / temperature).log_softmax(1) for x in (logits, teacher))
    divergence: Tensor = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(1)
    return temperature**2 * divergence.mean()


def stack_logits(logits: Sequence[Logits]) -> Tensor:
    """Pads the logits of a batch's examples to the shape of `task_logits`."""
    rows = [torch.from_numpy(one) for one in logits]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=EXCLUDED).squeeze(1)
