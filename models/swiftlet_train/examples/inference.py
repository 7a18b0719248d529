"""Examples for zero-shot classification: a text with a hypothesis that follows from it or not.

Beside pairs of natural language inference, texts with the names of their labels teach to match labels (Yin et al. 2019,
arXiv:1909.00161): the right label makes a hypothesis that follows, and wrong labels make others that do not. Articles
are texts whose title is the label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_models import datasets
from swiftlet_models.datasets import Inference, Named
from swiftlet_models.label_names import in_words
from swiftlet_models.relations import ENTAILMENT, find_relations
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import Example, take_evenly
from swiftlet_train.examples.sentences import split_sentences
from swiftlet_train.recipe import Finetuning

# The first is the default of /zero-shot, so half of the texts have it.
TEMPLATES: Final = ("This example is {}.", "This example is {}.", "This text is about {}.", "{}")
OTHER: Final = "not_entailment"


def read_inferences(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the pairs of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file has neither premises with hypotheses, nor texts with labels, nor articles; or a relation is
            not among the labels of the recipe.
    """
    pairs, targets = [], []
    for file, count in work.train.items():
        for pair in _read(data / file, count, work.negatives):
            fitting = find_relations(pair.label, work.labels)
            if len(fitting) > 1 and pair.label != OTHER:
                raise datasets.DatasetError(f"{file} has a relation that is not among the labels of the recipe.")
            pairs.append(pair)
            targets.append(fitting[0])
    encodings = tokenizer.encode([(pair.premise, pair.hypothesis) for pair in pairs], work.max_tokens)
    return [Example(encoding, (target,)) for encoding, target in zip(encodings, targets, strict=True)]


def _read(path: Path, count: int, negatives: int) -> list[Inference]:
    if not {".jsonl", ".tsv", ".csv"} & {*path.suffixes}:
        return make_hypotheses(take_evenly(list(_titled_sentences(path)), count), negatives)
    try:
        return take_evenly(datasets.inferences(path), count)
    except datasets.DatasetError:
        return make_hypotheses(take_evenly(datasets.named(path), count), negatives)


def _titled_sentences(path: Path) -> Iterator[Named]:
    """Yields one sentence of each article that does not contain its title."""
    for title, text in datasets.articles(path):
        words = title.lower().split()
        for sentence in split_sentences(text):
            if words and not any(word in sentence.lower() for word in words):
                yield Named(sentence, title)
                break


def make_hypotheses(texts: Sequence[Named], negatives: int) -> list[Inference]:
    """Returns pairs of each text with its label, and with that many wrong labels of other texts."""
    labels = sorted({text.label for text in texts})
    chance = np.random.default_rng(len(texts))
    pairs = []
    for number, text in enumerate(texts):
        template = TEMPLATES[number % len(TEMPLATES)]
        taken = [labels[i] for i in chance.permutation(len(labels))[: negatives + 1]]
        wrong = [label for label in taken if label != text.label][:negatives]
        for label in (text.label, *wrong):
            relation = ENTAILMENT if label == text.label else OTHER
            pairs.append(Inference(text.text, template.format(in_words(label)), relation))
    return pairs
