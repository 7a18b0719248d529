"""Examples for entities: texts whose tokens are labelled by BIO, the beginnings and the insides of spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from swiftlet_serve.models import datasets
from swiftlet_serve.models.datasets import Tagged
from swiftlet_serve.models.heads import Model
from swiftlet_serve.models.tokenizer import Encoding, TokenizedText, Tokenizer
from swiftlet_serve.models.training.examples import NO_LABEL, Example, collate, take_evenly
from swiftlet_serve.models.training.recipe import Finetuning, RecipeError
from swiftlet_serve.models.training.task_training import Run, train_on_batches
from swiftlet_serve.models.training.trainer import Losses

OUTSIDE: Final = "O"


def read_entities(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the texts of all training files, evenly spaced within each file.

    Long texts become several examples. The targets are the labels of the tokens in `focus`.

    Raises:
        DatasetError: a file is not in CoNLL's columns.
        RecipeError: no label is O, or a kind of entities has no labels.
    """
    numbers = {label: i for i, label in enumerate(work.labels)}
    for label in (OUTSIDE, *(f"{prefix}-{kind}" for kind in work.entity_kinds.values() for prefix in "BI" if kind)):
        if label not in numbers:
            raise RecipeError(f"the labels of a task like entities must contain {label}.")
    texts = [text for file, count in work.train.items() for text in take_evenly(datasets.tagged(data / file), count)]
    size = work.max_tokens - tokenizer.special_count(pair=False)
    examples = []
    for text, tokens in zip(texts, tokenizer.tokenize([one.text for one in texts]), strict=True):
        for chunk in tokenizer.chunks(tokens, 0, size, 0):
            targets = tuple(find_labels(text, chunk.tokens, work.entity_kinds, numbers))
            examples.append(Example(Encoding(chunk.input_ids, chunk.token_type_ids, chunk.focus), targets))
    return examples


def find_labels(
    text: Tagged, tokens: TokenizedText, kinds: Mapping[str, str], numbers: Mapping[str, int]
) -> Iterator[int]:
    """Yields the number of each token's label.

    `kinds` maps the kinds of entities of a file to those of the labels. Spans of other kinds are no entities. A kind
    that it maps to an empty text may be any of them, so that its tokens have no label.
    """
    labels = np.full(len(text.text) + 1, OUTSIDE, object)  # of each character
    for start, end, kind in text.spans:
        name = kinds.get(kind)
        if name is not None:
            labels[start:end] = f"I-{name}" if name else None
            labels[start] = f"B-{name}" if name else None
    for start, end in tokens.offsets:
        label = labels[start] if end > start else OUTSIDE
        yield NO_LABEL if label is None else numbers[label]


def train_on_entities(model: Model, examples: Sequence[Example], work: Finetuning, seed: int, run: Run) -> None:
    """Trains a model on the labels of tokens."""

    def batch_losses(numbers: Sequence[int]) -> Losses:
        return {"loss": entity_loss(model, [examples[i] for i in numbers])}

    train_on_batches(model, examples, batch_losses, work, seed, run)


def entity_loss(model: Model, examples: Sequence[Example]) -> Tensor:
    """Returns the mean cross entropy of the labels of all tokens that have one."""
    device = next(model.parameters()).device
    ids, types, lengths = collate(examples, device)
    places = [row * ids.shape[1] + example.encoding.focus for row, example in enumerate(examples)]
    focus = np.concatenate(places)
    targets = np.concatenate([example.target for example in examples])
    logits = model(ids, types, lengths, ids.new_tensor(focus)).float()
    return F.cross_entropy(logits, ids.new_tensor(targets), ignore_index=NO_LABEL)
