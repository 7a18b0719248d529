"""The logits of a model and of its teachers for the examples of a batch.

Dimension 1 holds the choices: labels (B, O), the positions of an answer's start and end (B, S, 2), or the labels of the
N tokens of a batch's chunks (N, O).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from swiftlet_models.encodings import Chunk
from swiftlet_models.heads import Model, TokenOutput
from swiftlet_train.examples.batches import collate
from swiftlet_train.examples.example import Example

EXCLUDED: Final = torch.finfo(torch.float32).min  # the logit of a position that cannot be chosen

Logits = NDArray[np.float32]
"""The logits of one example, (F, O), at its F focus positions."""


def task_logits(model: Model, examples: Sequence[Example]) -> Tensor:
    """Returns the logits of labels (B, O), of an answer's start and end (B, S, 2), or of the labels of tokens (N, O).

    As when served, an answer can only be at [CLS] or in the context, and the labels of GPT-2 and Qwen are read at the
    last token.
    """
    device = next(model.parameters()).device
    ids, types, lengths = collate(examples, device)
    if has_labelled_tokens(examples):
        places = [row * ids.shape[1] + example.encoding.focus for row, example in enumerate(examples)]
        tokens: Tensor = model(ids, types, lengths, ids.new_tensor(np.concatenate(places))).float()
        return tokens
    if isinstance(model.head, TokenOutput):
        rows: Tensor = model(ids, types, lengths, torch.arange(ids.numel(), device=device)).float()
        allowed = torch.zeros(ids.shape, dtype=torch.bool)
        allowed[:, 0] = True
        for row, example in enumerate(examples):
            allowed[row, example.context.start : example.context.stop] = True
        return rows.view(*ids.shape, 2).masked_fill(~allowed.to(device)[:, :, None], EXCLUDED)
    focus = torch.arange(len(examples), device=device) * ids.shape[1]
    if model.encoder.config.traits().classifies_last:
        focus = focus + lengths - 1
    out: Tensor = model(ids, types, lengths, focus).float()
    return out


def has_labelled_tokens(examples: Sequence[Example]) -> bool:
    """Returns whether each token has a label, and not each text. The encodings of such examples are chunks."""
    return isinstance(examples[0].encoding, Chunk)


def split_logits(logits: Tensor, examples: Sequence[Example]) -> list[Tensor]:
    """Returns the part of each example in the logits of `task_logits`."""
    if has_labelled_tokens(examples):
        return list(torch.split(logits, [len(example.encoding.focus) for example in examples]))
    return list(logits)


def stack_logits(logits: Sequence[Logits], examples: Sequence[Example]) -> Tensor:
    """Joins the logits of a batch's examples to the shape of `task_logits`."""
    rows = [torch.from_numpy(example) for example in logits]
    if has_labelled_tokens(examples):
        return torch.cat(rows)
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=EXCLUDED).squeeze(1)


def mean_predictions(left: Sequence[Logits], right: Sequence[Logits], share: float = 0.5) -> list[Logits]:
    """Returns the mean of two teachers' probabilities for each example, as logarithms, (F, L) each.

    `share` is the weight of the first teacher, between 0 and 1. Without a prediction of the second teacher
    (NaN), the first teacher's is the result.
    """
    own, rest = np.log(np.array([share, 1 - share], np.float32))
    means = []
    for a, b in zip(left, right, strict=True):
        missing = np.isnan(b)
        first, second = _log_softmax(a), _log_softmax(np.where(missing, np.float32(0), b))
        means.append(np.where(missing, first, np.logaddexp(own + first, rest + second)))
    return means


def _log_softmax(logits: Logits) -> Logits:
    normalised: Logits = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return normalised
