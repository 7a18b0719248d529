"""Texts with labels that a request names: GLiNER (Zaratiana et al. 2024, arXiv:2311.08526) and GLiClass.

The labels stand in one sequence with the text, each behind a marker, and a separator divides them from the text. Or a
second network makes a vector of each label by itself. The network gives hidden states, and the head here gives each
label a score: for spans of words (`spans`), for words that begin, end and continue a span (`words`), or for the text
(`text`). It follows gliner 0.2.29 and gliclass 0.1.21.

The head computes in fp32 and one sequence at a time, so that an answer does not depend on its batch. Shape letters: C
labels, W words, K words of the widest span, and H the width of the head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from swiftlet_models.artifact import Labelling
from swiftlet_models.encodings import Encoding, Ids, TooManyWindows
from swiftlet_models.errors import ModelError
from swiftlet_models.probabilities import sigmoid
from swiftlet_models.tensors import Floats, HeadWeights
from swiftlet_models.tokenizer import Tokenizer

WORD: Final = re.compile(r"\w+(?:[-_]\w+)*|\S")  # GLiNER's splitter `whitespace`
EPSILON: Final = 1e-8  # added to the length of a vector that is normalised
PAIRS: Final = 256  # of a word and a label that a perceptron reads at once: their inner layer stays in the cache


class LabellingError(ModelError):
    """Raised when a head does not fit its description. The message is a clause."""


@dataclass(eq=False)
class LabelledText(Encoding):
    """A sequence of labels and a text, or a window of its words.

    A label has the rows labels[i, 0]:labels[i, 1] of the F rows that the head reads, and a word those of `words`. A
    text that is not divided into words counts as one.
    """

    labels: Ids  # (C, 2)
    words: Ids  # (W, 2)
    word_spans: Ids  # (W, 2): start and end of each word in the text, in code points; (0, 2) if it is not divided
    first_word: int = 0  # number of the first word among those of the text


class NoRoom(Exception):  # tasks translate it into an error of the API
    """Raised when labels leave no room for a text."""


class Words:
    """The words of a text that have tokens. A word without a token, such as U+FE0F, is no word."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        spans = [match.span() for match in WORD.finditer(text)]
        ids = tokenizer.words([text[start:end] for start, end in spans])
        self.spans = np.array([span for span, own in zip(spans, ids, strict=True) if own]).reshape(-1, 2)
        self.ids = [own for own in ids if own]

    def __len__(self) -> int:
        return len(self.ids)


class Reader:
    """Makes sequences of labels and texts."""

    def __init__(self, tokenizer: Tokenizer, labelling: Labelling, max_tokens: int) -> None:
        """Raises ValueError if the tokenizer lacks a token, or could read one in a text."""
        self.tokenizer, self.labelling = tokenizer, labelling
        self._size = max_tokens - tokenizer.special_count(pair=False)
        if labelling.encoder is None:
            self._marker, self._separator = (self._special(token) for token in (labelling.marker, labelling.separator))

    def _special(self, token: str) -> int:
        number = self.tokenizer.token_to_id(token)
        if number not in self.tokenizer.special_ids or token in self.tokenizer.reading.special_tokens:
            raise ValueError(f"{token!r} is not a special token of the tokenizer.")
        assert number is not None  # noqa: S101  # for the type checker
        return number

    def labels(self, names: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each label. A blank one has none."""
        return self.tokenizer.words(names)

    def windows(
        self, labels: Sequence[Sequence[int]], text: Words, text_index: int, overlap: int, most: int
    ) -> Iterator[LabelledText]:
        """Yields windows of a text, which overlap by this number of words, or by half of one if that is fewer.

        There may be at most `most` of them. A word that is longer than a window is cut. Without `labels`, a window has
        the text alone.

        Raises:
            NoRoom: the labels leave no room for a token.
            TooManyWindows: there are more windows.
        """
        prompt, starts = self._prompt(labels)
        room, first = self._size - len(prompt), 0
        if room < 1:
            raise NoRoom
        while first < len(text):
            if most < 1:
                raise TooManyWindows
            ids, stop, left_out = list[int](), first, 0
            words: list[tuple[int, int]] = []
            for own in text.ids[first : first + self.labelling.max_words]:
                if len(ids) + len(own) > room and words:
                    break
                left_out += max(0, len(own) - room)
                words.append((len(ids), len(ids) + min(len(own), room)))
                ids += own[:room]
                stop += 1
            sequence = self._sequence(prompt, starts, ids, words, text_index, left_out)
            yield replace(sequence, first_word=first, word_spans=text.spans[first:stop])
            if stop == len(text):
                return
            first, most = stop - min(overlap, len(words) // 2), most - 1

    def whole(self, labels: Sequence[Sequence[int]], text: Sequence[int], text_index: int) -> LabelledText:
        """Returns a text with its labels. The end of a text that is too long is cut.

        Raises:
            NoRoom: the labels leave no room for a token.
        """
        prompt, starts = self._prompt(labels)
        room = self._size - len(prompt)
        if room < 1:
            raise NoRoom
        left_out = max(0, len(text) - room)
        return self._sequence(prompt, starts, list(text[:room]), [], text_index, left_out)

    def _prompt(self, labels: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Returns the labels with their markers and the separator, and the places of the markers."""
        prompt, starts = list[int](), list[int]()
        if not labels:
            return prompt, starts
        for ids in labels:
            starts.append(len(prompt))
            prompt += [self._marker, *ids]
        return [*prompt, self._separator], starts

    def _sequence(
        self,
        prompt: list[int],
        starts: list[int],
        text: list[int],
        words: list[tuple[int, int]],
        text_index: int,
        left_out: int,
    ) -> LabelledText:
        described = self.labelling
        ids = [*prompt, *text] if described.labels_first else [*text, *prompt]
        input_ids, token_type_ids, at = self.tokenizer.wrap(ids)
        labels_at = at + (0 if described.labels_first else len(text))
        text_at = at + (len(prompt) if described.labels_first else 0)
        marks = labels_at + np.array(starts, np.int64)
        if described.label_rows == "mean":  # of the marker and what follows, up to the next marker
            ends = [*marks[1:], labels_at + len(prompt) - 1 if described.reads_from_separator else len(input_ids)]
            labels = np.stack([marks, ends], 1)
        else:
            labels = np.stack([marks, marks + 1], 1) + (described.label_rows == "next")
        if described.scores == "text":
            begin = labels_at + len(prompt) - 1 if described.reads_from_separator else 0
            spans = np.array([[begin, len(input_ids)]])
        else:
            spans = text_at + np.array(words, np.int64)
        if described.word_rows == "first":
            spans = np.stack([spans[:, 0], spans[:, 0] + 1], 1)
        elif described.word_rows == "last":
            spans = np.stack([spans[:, 1] - 1, spans[:, 1]], 1)
        focus, both = _gather(np.concatenate([labels, spans]))
        return LabelledText(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            focus=focus,
            labels=both[: len(labels)],
            words=both[len(labels) :],
            word_spans=np.zeros((0, 2), np.int64),
            text_index=text_index,
            left_out=left_out,
        )


def _gather(ranges: Ids) -> tuple[Ids, Ids]:
    """Returns the positions in some ranges one after the other, and the place of each range among them."""
    ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
    focus = np.concatenate([np.arange(start, stop) for start, stop in ranges.tolist()])
    return focus, np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)


class Scorer:
    """The head of a model: from rows of hidden states to the probability of each label."""

    def __init__(self, labelling: Labelling, head: HeadWeights, width: int) -> None:
        """Checks the parameters of a head whose rows have this width.

        Raises:
            LabellingError: a parameter is missing or unexpected, or has another shape.
        """
        self.labelling, self._head, self._width = labelling, head, width
        self._known: set[str] = set()
        self._layers = 0
        match labelling.scores:
            case "spans":
                self._take_rnn()
                self._projection("prompt_rep_layer", width)
                for part in ("start", "end"):
                    self._projection(f"span_rep_layer.span_rep_layer.project_{part}", width)
                self._projection("span_rep_layer.span_rep_layer.out_project", 2 * width)
            case "words":
                self._take_rnn()
                self._pair("proj_token", outputs=3)
            case "text":
                self._take_text()
        for name in sorted(head.keys() - self._known):
            raise LabellingError(f"the parameter {name!r} of the head is unexpected")

    def prepare(self, labels: Floats) -> Sequence[Floats]:
        """Returns what the head makes of the vectors of labels (C, H) alone, for any number of sequences."""
        match self.labelling.scores:
            case "spans":
                prompts, last = self._project("prompt_rep_layer", labels), "span_rep_layer.span_rep_layer.out_project.3"
                return (prompts @ self._head[f"{last}.weight"]).T, prompts @ self._head[f"{last}.bias"]
            case "words":
                return self._of_labels(labels)
        return (labels,)

    def probabilities(self, text: LabelledText, row: Floats, labels: Sequence[Floats] | None = None) -> Floats:
        """Returns the probabilities of a sequence from its rows (F, H), and from the labels that `prepare` returned if
        it has none.

        For `spans` (W, K, C): of words i to i + k, zero beyond the last word. For `words` (W, C, 3): that a word
        begins, ends and is part of a span. For `text` (C,).
        """
        return sigmoid(self.logits(text, row, labels))

    def logits(self, text: LabelledText, row: Floats, labels: Sequence[Floats] | None = None) -> Floats:
        """Returns the logits of `probabilities`. Those of no span are minus infinity."""
        if labels is None:
            labels = self.prepare(_pool(row, text.labels, self.labelling.label_rows))
        words = _pool(row, text.words, self.labelling.word_rows)
        match self.labelling.scores:
            case "spans":
                return self._spans(self._rnn(words), *labels)
            case "words":
                return self._scores("proj_token", self._rnn(words), *labels)
        return self._text(words, *labels)

    # ---- parameters

    def _take(self, name: str, *shape: int) -> Floats:
        if (array := self._head.get(name)) is None:
            raise LabellingError(f"the parameter {name!r} of the head is missing")
        if array.shape != shape:
            raise LabellingError(f"the parameter {name!r} of the head has the shape {array.shape}, expected {shape}")
        self._known.add(name)
        return array

    def _linear(self, name: str, outputs: int, inputs: int) -> None:
        self._take(f"{name}.weight", outputs, inputs)
        self._take(f"{name}.bias", outputs)

    def _projection(self, name: str, inputs: int) -> None:
        self._linear(f"{name}.0", 4 * self._width, inputs)
        self._linear(f"{name}.3", self._width, 4 * self._width)

    def _pair(self, text: str, outputs: int) -> None:
        for part in (text, "proj_label"):
            self._linear(f"scorer.{part}", 2 * self._width, self._width)
        self._linear("scorer.out_mlp.0", 4 * self._width, 3 * self._width)
        self._linear("scorer.out_mlp.3", outputs, 4 * self._width)

    def _take_rnn(self) -> None:
        half = self._width // 2
        while f"rnn.lstm.weight_ih_l{self._layers}" in self._head:
            for direction in ("", "_reverse"):
                end = f"_l{self._layers}{direction}"
                for part in ("ih", "hh"):
                    self._take(f"rnn.lstm.weight_{part}{end}", 4 * half, self._width if part == "ih" else half)
                    self._take(f"rnn.lstm.bias_{part}{end}", 4 * half)
            self._layers += 1

    def _take_text(self) -> None:
        inner = len(self._head.get("text_projector.linear_1.weight", ()))
        for name in ("text_projector", "classes_projector"):
            self._linear(f"{name}.linear_1", inner, self._width)
            self._linear(f"{name}.linear_2", self._width, inner)
        match self.labelling.scorer:
            case "weighted-dot":
                self._pair("proj_text", outputs=1)
            case "mlp":
                middle = len(self._head.get("scorer.mlp.0.weight", ()))
                self._linear("scorer.mlp.0", middle, 2 * self._width)
                self._linear("scorer.mlp.2", middle // 2, middle)
                self._linear("scorer.mlp.4", 1, middle // 2)

    # ---- computation

    def _apply(self, name: str, x: Floats) -> Floats:
        return x @ self._head[f"{name}.weight"].T + self._head[f"{name}.bias"]

    def _project(self, name: str, x: Floats) -> Floats:
        return self._apply(f"{name}.3", _relu(self._apply(f"{name}.0", x)))

    def _rnn(self, x: Floats) -> Floats:
        """Returns what an LSTM in both directions makes of words, (W, H)."""
        for layer in range(self._layers):
            ends = [f"_l{layer}{direction}" for direction in ("", "_reverse")]
            gates, recurrent = [], []
            for end in ends:
                bias = self._head[f"rnn.lstm.bias_ih{end}"] + self._head[f"rnn.lstm.bias_hh{end}"]
                gates.append(x @ self._head[f"rnn.lstm.weight_ih{end}"].T + bias)
                recurrent.append(self._head[f"rnn.lstm.weight_hh{end}"])
            gates[1] = gates[1][::-1]
            x = _lstm(np.stack(gates, 1), np.stack(recurrent))
        return x

    def _spans(self, words: Floats, last: Floats, bias: Floats) -> Floats:
        """Returns the logits of spans, (W, K, C).

        The first layer of `out_project` is the sum of what it makes of both ends, and the second one is multiplied with
        the labels first: a span then costs C products instead of H.
        """
        layer, (count, width) = "span_rep_layer.span_rep_layer", words.shape
        outer = self._head[f"{layer}.out_project.0.weight"]
        starts, ends = (_relu(self._project(f"{layer}.project_{part}", words)) for part in ("start", "end"))
        starts = starts @ outer[:, :width].T
        ends = ends @ outer[:, width:].T + self._head[f"{layer}.out_project.0.bias"]
        logits = np.full((count, self.labelling.max_width, len(bias)), -np.inf, np.float32)
        for k in range(min(self.labelling.max_width, count)):
            logits[: count - k, k] = _relu(starts[: count - k] + ends[k:]) @ last + bias
        return logits

    def _of_labels(self, labels: Floats) -> tuple[Floats, Floats]:
        """Returns what labels add to the inner layer of `_scores`, (C, 4 H), and their factors, (C, H)."""
        named, width = self._apply("scorer.proj_label", labels), labels.shape[1]
        own = self._head["scorer.out_mlp.0.weight"][:, width : 2 * width]
        return named[:, :width] @ own.T, named[:, width:]

    def _scores(self, text: str, words: Floats, from_labels: Floats, factors: Floats) -> Floats:
        """Returns the outputs of a perceptron that reads a word, a label and their product, (W, C, outputs)."""
        (count, width), texts = words.shape, self._apply(f"scorer.{text}", words)
        inner, met = (self._head["scorer.out_mlp.0.weight"][:, i * width : (i + 1) * width] for i in (0, 2))
        from_texts = texts[:, :width] @ inner.T + self._head["scorer.out_mlp.0.bias"]
        scores, step = [], max(1, PAIRS // max(1, count))
        for labels in (slice(start, start + step) for start in range(0, len(factors), step)):
            products = (texts[:, None, width:] * factors[labels]).reshape(-1, width) @ met.T
            of_both = from_texts[:, None] + from_labels[labels] + products.reshape(count, -1, len(met))
            scores.append(self._apply("scorer.out_mlp.3", _relu(np.asarray(of_both, np.float32))))
        return np.concatenate(scores, axis=1)

    def _text(self, text: Floats, labels: Floats) -> Floats:
        """Returns the logits of a text, (C,)."""
        labels, text = (self._features(name, x) for name, x in (("classes", labels), ("text", text)))
        match self.labelling.scorer:
            case "weighted-dot":
                logits = self._scores("proj_text", text, *self._of_labels(labels))[0, :, 0]
            case "mlp":
                x = np.concatenate([np.broadcast_to(text, labels.shape), labels], 1)
                for layer in ("scorer.mlp.0", "scorer.mlp.2"):
                    x = _relu(self._apply(layer, x))
                logits = self._apply("scorer.mlp.4", x)[:, 0]
            case _:
                logits = labels @ text[0]
        return logits * np.float32(self.labelling.scale) if self.labelling.scale is not None else logits

    def _features(self, name: str, x: Floats) -> Floats:
        x = self._apply(f"{name}_projector.linear_2", _gelu(self._apply(f"{name}_projector.linear_1", x)))
        if self.labelling.scale is None:
            return x
        normalized: Floats = x / (np.linalg.norm(x, axis=-1, keepdims=True) + np.float32(EPSILON))
        return normalized


def _pool(row: Floats, ranges: Ids, how: str) -> Floats:
    """Returns one row for each range of rows: the only one, or their mean or maximum."""
    if how not in ("mean", "max"):
        return row[ranges[:, 0]]
    reduce = np.mean if how == "mean" else np.max
    return np.stack([reduce(row[start:stop], axis=0) for start, stop in ranges.tolist()])


def _lstm(gates: Floats, recurrent: Floats) -> Floats:
    """Returns the outputs of both directions of a layer side by side, (W, 2 h).

    The gates (W, 2, 4 h) lack what the matrices `recurrent` (2, 4 h, h) add. Those of the second direction are in
    reverse.
    """
    count, _, wide = gates.shape
    h = wide // 4
    state, cell = np.zeros((2, h), np.float32), np.zeros((2, h), np.float32)
    outputs = np.empty((count, 2, h), np.float32)
    for t in range(count):
        own = gates[t] + (recurrent @ state[..., None])[..., 0]
        enter, keep, leave = sigmoid(own[:, :h]), sigmoid(own[:, h : 2 * h]), sigmoid(own[:, 3 * h :])
        cell = keep * cell + enter * np.tanh(own[:, 2 * h : 3 * h])
        outputs[t] = state = leave * np.tanh(cell)
    return np.concatenate([outputs[:, 0], outputs[::-1, 1]], 1)


def _relu(x: Floats) -> Floats:
    return np.maximum(x, 0)


def _gelu(x: Floats) -> Floats:
    errors = np.array([math.erf(value) for value in (x / np.float32(math.sqrt(2))).flat], np.float32).reshape(x.shape)
    return np.asarray(x * (1 + errors) / 2, np.float32)
