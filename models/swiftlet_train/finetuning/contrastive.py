"""Contrastive training of an embedding model: of all partners in a batch, each text is to be closest to its own.

The loss is the cross entropy of the scaled cosines (Henderson et al. 2017, arXiv:1705.00652, section 4.4). The partners
of other texts are the negatives, besides a text of its own that a file names as wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_models.heads import Model
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import Example, unlabelled
from swiftlet_train.examples.partners import Pair, read_pairs
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.finetuning.task_training import Run, train_on_batches
from swiftlet_train.loop.trainer import Losses
from swiftlet_train.recipe import Finetuning, Recipe

SCALE: Final = 20.0  # of the cosines, as in sentence-transformers' MultipleNegativesRankingLoss


def train_on_pairs(model: Model, recipe: Recipe, work: Finetuning, tokenizer: Tokenizer, data: Path, run: Run) -> None:
    """Trains an embedding model on the pairs of the recipe.

    Raises:
        DatasetError: a file has neither texts with labels, pairs or answers, nor articles.
    """
    pairs = read_pairs(work, data)
    numbers = {text: number for number, text in enumerate(dict.fromkeys(_partners(pairs)))}  # equal texts are one
    texts = unlabelled(tokenizer.encode([pair.text for pair in pairs], work.max_tokens))
    partners = unlabelled(tokenizer.encode(list(numbers), work.max_tokens))

    def batch_losses(batch: Sequence[int]) -> Losses:
        right = [numbers[pairs[i].partner] for i in batch]
        wrong = [numbers[pairs[i].wrong] for i in batch if pairs[i].wrong]
        candidates = list(dict.fromkeys([*right, *wrong]))
        targets = torch.tensor([candidates.index(number) for number in right])
        return {
            "contrast": contrastive_loss(model, [texts[i] for i in batch], [partners[i] for i in candidates], targets)
        }

    train_on_batches(model, texts, batch_losses, work, recipe.seed, run)


def contrastive_loss(model: Model, texts: Sequence[Example], candidates: Sequence[Example], targets: Tensor) -> Tensor:
    """Returns the cross entropy of choosing the partner among the candidates, averaged over the texts.

    `targets` (B,) are the numbers of the texts' partners among the candidates.
    """
    ours, theirs = (F.normalize(task_logits(model, examples)) for examples in (texts, candidates))
    return F.cross_entropy(SCALE * ours @ theirs.T, targets.to(ours.device))


def _partners(pairs: Sequence[Pair]) -> Iterator[str]:
    for pair in pairs:
        yield pair.partner
        if pair.wrong:
            yield pair.wrong
