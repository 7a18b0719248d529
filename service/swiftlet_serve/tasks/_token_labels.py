"""Labels of tokens and words, and the entities that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.tensors import Floats
from swiftlet_models.turns import in_turns
from swiftlet_serve.tasks._spans import Numbers

Strategy = Literal["none", "simple", "first", "average", "max"]
SchemeName = Literal["bio", "bilou"]

# The prefixes of labels, and whether a token with such a label begins an entity.
PREFIXES: Final[dict[SchemeName, dict[str, bool]]] = {
    "bio": {"B-": True, "I-": False},
    "bilou": {"B-": True, "U-": True, "S-": True, "I-": False, "L-": False, "E-": False},
}


class Tokens(NamedTuple):
    """The tokens of a window."""

    text: str  # the whole text
    ids: list[int]
    spans: list[list[int]]  # start and end of each token in the text


class Marks(NamedTuple):
    """M tokens or words of a window, each with its label."""

    label: Numbers  # (M,): the number of the label
    score: Floats  # (M,): its probability
    first: Numbers  # (M,): the first token
    stop: Numbers  # (M,): behind the last token

    @classmethod
    def of_tokens(cls, probabilities: Floats) -> Marks:
        """Returns the most probable label of each token, from its probabilities, (F, labels)."""
        label, places = probabilities.argmax(axis=1), np.arange(len(probabilities))
        return cls(label, probabilities[places, label], places, places + 1)

    @classmethod
    def of_words(cls, probabilities: Floats, begins: Sequence[bool], strategy: Strategy) -> Marks:
        """Returns the label of each word, from the probabilities of its tokens. Some of them begin a word."""
        first = np.flatnonzero(begins)
        stop = np.append(first[1:], len(begins))
        if strategy == "first":
            own = probabilities[first]
        else:
            words = [probabilities[start:end] for start, end in zip(first.tolist(), stop.tolist(), strict=True)]
            if strategy == "average":
                own = np.array([word.mean(axis=0) for word in in_turns(words, 16)])
            else:
                own = np.array([word[word.max(axis=1).argmax()] for word in in_turns(words, 16)])
        return cls.of_tokens(own)._replace(first=first, stop=stop)


class Scheme(NamedTuple):
    """What each label of a model means to a label scheme."""

    begins: NDArray[np.bool_]  # whether a token with the label begins an entity
    kind: Numbers  # the number of its kind: labels of one kind continue an entity

    @classmethod
    def of(cls, labels: Sequence[str], name: SchemeName) -> Scheme:
        tags = [tag(label, name) for label in labels]
        kinds = [kind for _, kind in tags]
        return cls(np.array([begins for begins, _ in tags]), np.array([kinds.index(kind) for kind in kinds]))

    def first_of_entities(self, label: Numbers) -> Numbers:
        """Returns where entities begin, given the labels of tokens or words: adjacent ones of one kind are one."""
        kind, begins = self.kind[label], self.begins[label]
        begins[1:] |= kind[1:] != kind[:-1]
        begins[:1] = True
        return np.flatnonzero(begins)


def tag(label: str, scheme: SchemeName) -> tuple[bool, str]:
    """Returns whether a label begins an entity, and its kind. A label without a known prefix continues one."""
    begins = PREFIXES[scheme].get(label[:2])
    return (False, label) if begins is None else (begins, label[2:])


def merge_overlaps(entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the entities of overlapping windows in order. Of two that overlap, the longer or more certain one stays.

    As in the pipeline, an entity is compared with the last one that stayed only.
    """
    merged: list[dict[str, Any]] = []
    ordered = sorted(entities, key=lambda entity: entity["start"])
    last = ordered[0] if ordered else {}
    for entity in ordered:
        if last["start"] <= entity["start"] < last["end"]:
            last = max(last, entity, key=lambda entity: (entity["end"] - entity["start"], entity["score"]))
        else:
            merged.append(last)
            last = entity
    return [*merged, last] if last else []
