"""How many multiply-adds an answer needs, as the network is defined: what an engine's time is held against.

Ragged: a token counts once and padding not at all. Of the last layer, keys and values count for every token, all else
for the rows that the head reads; the head counts for these alone. What an engine computes beyond that, to pad or
because two products made one are fewer calls, is not needed. Look-ups, norms and softmax multiply little, and are left
out. Shape letters: see `architectures/layers.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from swiftlet_serve.models.folding import DEFAULTS

_LAYER: Final = re.compile(r"encoder\.(?:layers\.\d+|groups\.\d+\.\d+)\.")


@dataclass(frozen=True)
class Work:
    """Multiply-adds of the parts of a network."""

    embedding: int  # for each token
    layers: int
    keys: int  # of a layer for each token: what attention reads of it
    rest: int  # of a layer for each token that goes on from it
    pair: int  # of a layer for each two tokens of which one attends to the other
    head: int  # for each token that is read

    @classmethod
    def of(cls, architecture: str, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> Work:
        """The work of a network whose parameters have these shapes, under the names that `models.heads` gives them."""
        settings = {**DEFAULTS[architecture], **config}
        sizes = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) == 2}
        first = next(found[0] for name in sizes if (found := _LAYER.match(name)))
        layer = {
            name.removeprefix(first).removesuffix(".weight"): n for name, n in sizes.items() if name.startswith(first)
        }
        read = {"key", "value", "enter_attention.dense"}
        if settings.get("use_bottleneck_attention"):
            read.add("enter.dense")
        keys = sum(size for name, size in layer.items() if name in read)
        return cls(
            embedding=sizes.get("encoder.embeddings.projection.weight", 0),
            layers=int(settings["num_hidden_layers"]) * int(settings.get("inner_group_num", 1)),
            keys=keys,
            rest=sum(layer.values()) - keys,
            pair=2 * shapes[first + "key.weight"][0],
            head=_head(sizes),
        )

    def needed(self, lengths: Sequence[int], reads: Sequence[int]) -> int:
        """Of rows with this many tokens, of which the head reads so many."""
        tokens, read = sum(lengths), sum(reads)
        pairs = sum(length * length for length in lengths)
        last = tokens * self.keys + read * self.rest + self.pair * sum(map(int.__mul__, lengths, reads))
        before = (self.layers - 1) * (tokens * (self.keys + self.rest) + pairs * self.pair)
        return tokens * self.embedding + before + last + read * self.head


def _head(sizes: Mapping[str, int]) -> int:
    """Products of the head; that of a masked-LM head with the word table, too, and with the columns it lacks."""
    products = ("head.pooler.weight", "head.output.weight", "head.transform.weight", "head.extra")
    words = sizes["encoder.embeddings.word.weight"] if "head.transform.weight" in sizes else 0
    return words + sum(sizes.get(name, 0) for name in products)
