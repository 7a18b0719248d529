"""Contrastive training of an embedding model: of all partners in a batch, each text is to be closest to its own.

The loss is the cross entropy of the scaled cosines (Henderson et al. 2017, arXiv:1705.00652, section 4.4). The partners
of other texts are the negatives, besides a text of its own that a file names as wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_serve.models import datasets
from swiftlet_serve.models.datasets import Question
from swiftlet_serve.models.heads import Model
from swiftlet_serve.models.relations import ENTAILED
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training.examples.example import Example, take_evenly, unlabelled
from swiftlet_serve.models.training.examples.relevance import RELEVANT, judge_sentences
from swiftlet_serve.models.training.examples.texts import split_sentences
from swiftlet_serve.models.training.finetuning.losses import task_logits
from swiftlet_serve.models.training.finetuning.task_training import Run, train_on_batches
from swiftlet_serve.models.training.loop.trainer import Losses
from swiftlet_serve.models.training.recipe import Finetuning, Recipe

SCALE: Final = 20.0  # of the cosines, as in sentence-transformers' MultipleNegativesRankingLoss
KIND: Final = re.compile(
    r"\b(?:is|was|are|were) (?:an?|the|one of the) ([a-z][\w' -]{2,50}?)"
    r"(?= (?:of|in|from|that|which|who|whose|by|located|and|for|at|on|with|to|born|based|near|where)\b|[,.;(])",
    re.IGNORECASE,
)
"""What the subject of a sentence is: "a former railway station" in "Acton was a former railway station in Ohio"."""


class Pair(NamedTuple):
    """A text, its partner, and a text that is no partner; empty if there is none."""

    text: str
    partner: str
    wrong: str = ""


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
    """Returns the mean cross entropy of the candidates for each text. `targets` (B,) are the partners' indices."""
    ours, theirs = (F.normalize(task_logits(model, examples)) for examples in (texts, candidates))
    return F.cross_entropy(SCALE * ours @ theirs.T, targets.to(ours.device))


def read_pairs(work: Finetuning, data: Path) -> list[Pair]:
    """Reads the pairs of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file has neither texts with labels, pairs or answers, nor articles.
    """
    return [pair for file, count in work.train.items() for pair in _read(data / file, count)]


def _partners(pairs: Sequence[Pair]) -> Iterator[str]:
    for pair in pairs:
        yield pair.partner
        if pair.wrong:
            yield pair.wrong


def _read(path: Path, count: int) -> list[Pair]:
    if path.suffix == ".json":
        asked = [question for question in datasets.questions(path) if question.answers]
        return [pair for question in take_evenly(asked, count) for pair in _answers(question)]
    if ".jsonl" not in path.suffixes:
        return take_evenly(list(_kinds(path)), count)
    try:
        return take_evenly(_entailments(path), count)
    except datasets.DatasetError:
        return take_evenly(_labels(path), count)


def _answers(question: Question) -> Iterator[Pair]:
    """Yields a question with the sentence that has its answer, and with another sentence of the paragraph."""
    judged = list(judge_sentences(question, negatives=1))
    wrong = next((one.text for one in judged if one.target != RELEVANT), "")
    yield from (Pair(one.query, one.text, wrong) for one in judged if one.target == RELEVANT)


def _entailments(path: Path) -> list[Pair]:
    return [
        Pair(one.premise, one.hypothesis) for one in datasets.inferences(path) if one.label.lower().startswith(ENTAILED)
    ]


def _labels(path: Path) -> list[Pair]:
    return [Pair(one.text, datasets.label_words(one.label)) for one in datasets.named(path) if one.text.strip()]


def _kinds(path: Path) -> Iterator[Pair]:
    """Yields the beginning of each article that tells what its subject is, with that."""
    for _, text in datasets.articles(path):
        sentences = split_sentences(text[:1000])[:2]
        found = KIND.search(sentences[0]) if sentences else None
        if found:
            yield Pair(" ".join(sentences), found[1].lower())
