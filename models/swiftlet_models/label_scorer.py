"""The head of a model that reads labels: the score of each label, from hidden states (`label_reader.py`).

The scores are for spans of words (`spans`), for words that begin, end and continue a span (`words`), or for the text
(`text`).

The head computes in fp32 and one sequence at a time, so that an answer does not depend on its batch. Shape letters: C
labels, W words, K words of the widest span, and H the width of the head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from swiftlet_models.artifact import Labelling
from swiftlet_models.encodings import Ids
from swiftlet_models.errors import ModelError
from swiftlet_models.label_reader import LabelledText
from swiftlet_models.probabilities import sigmoid
from swiftlet_models.tensors import Floats, HeadWeights

EPSILON: Final = 1e-8  # added to the length of a vector that is normalised
PAIRS: Final = 256  # of a word and a label that a perceptron reads at once: their inner layer stays in the cache


class LabellingError(ModelError):
    """Raised when a head does not fit its description. The message is a clause."""


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
