"""Spans of words with labels: those that are probable enough, and of these the ones that go together.

The order of equal scores is that of gliner 0.2.29, because the first of two spans that overlap stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.tensors import Floats

Numbers = NDArray[np.int64]


class Spans(NamedTuple):
    """Some labels of spans, each with its score."""

    start: Numbers  # the first word
    end: Numbers  # the last word
    label: Numbers
    score: Floats

    def moved(self, words: int) -> Spans:
        """Returns the same spans in a text that has this number of words in front."""
        return self._replace(start=self.start + words, end=self.end + words)


def of_spans(probabilities: Floats, threshold: float) -> Spans:
    """Returns the labels above the threshold from the probabilities of spans, (W, K, C): of words i to i + k."""
    start, width, label = np.nonzero(probabilities > np.float32(threshold))
    return Spans(start, start + width, label, probabilities[start, width, label])


def of_words(probabilities: Floats, threshold: float) -> Spans:
    """Returns the labels of spans from the probabilities that a word begins, ends and is part of one, (W, C, 3).

    A span begins and ends above the threshold, and no word in it is below. Its score is the lowest of all.
    """
    begins, ends, inside = np.moveaxis(probabilities, 2, 0)
    may_end = ends > np.float32(threshold)
    below = inside.astype(np.float64) < threshold
    found = []
    for start, label in np.argwhere(begins > np.float32(threshold)).tolist():
        gaps = np.flatnonzero(below[start:, label])
        stop = start + int(gaps[0]) if len(gaps) else len(below)
        last = start + np.flatnonzero(may_end[start:stop, label])
        if len(last):
            lowest = np.minimum.accumulate(inside[start:stop, label])[last - start]
            score = np.minimum(np.minimum(lowest, begins[start, label]), ends[last, label])
            found.append(Spans(np.full(len(last), start), last, np.full(len(last), label), score))
    return joined(found)


def joined(parts: Sequence[Spans]) -> Spans:
    """Returns all labels of some lists, in order. One that occurs several times has its highest score."""
    if not parts:
        nothing = np.zeros(0, np.int64)
        return Spans(nothing, nothing, nothing, np.zeros(0, np.float32))
    start, end, label = np.concatenate([np.stack(part[:3]) for part in parts], 1)
    score = np.concatenate([part.score for part in parts])
    order = np.argsort(-score, kind="stable")
    _, first = np.unique(np.stack([start, end, label])[:, order], axis=1, return_index=True)
    kept = np.sort(order[first])
    return Spans(start[kept], end[kept], label[kept], score[kept])


def select(spans: Spans, *, nested: bool, multi_label: bool) -> list[int]:
    """Returns the numbers of the labels that stay, by the start of their spans, and then the highest score first.

    A label is dropped if its span meets that of a label with a higher score. With `nested`, one span may lie in the
    other. With `multi_label`, a span may have several labels.
    """
    order = np.argsort(-spans.score, kind="stable")
    starts, ends = spans.start[order].tolist(), spans.end[order].tolist()
    words = max(ends, default=0) + 1
    taken = bytearray(words)
    furthest, earliest = [-1] * words, [words] * words  # the end of a span by its start, and the reverse
    verdicts: dict[tuple[int, int], bool] = {}
    kept = []
    for number, start, end in zip(order.tolist(), starts, ends, strict=True):
        verdict = verdicts.get((start, end))
        if verdict is None:
            if nested:
                verdict = max(furthest[start + 1 : end + 1], default=-1) <= end
                verdict = verdict and min(earliest[start:end], default=words) >= start
            else:
                verdict = taken.find(1, start, end + 1) < 0
            verdicts[start, end] = verdict
        elif not multi_label:
            continue
        if verdict:
            kept.append(number)
            taken[start : end + 1] = b"\1" * (end + 1 - start)
            furthest[start], earliest[end] = max(furthest[start], end), min(earliest[end], start)
    return sorted(kept, key=lambda number: int(spans.start[number]))
