"""The multiply-adds of a network: the arithmetic that a batch needs, which the benchmark relates an engine's time to.

The count follows the network's definition on a ragged batch. Padding does not count. In the last layer, keys and
values count for every token, and everything else for the tokens that the head reads. Additional arithmetic of an engine
does not count. Look-ups, norms and softmax multiply little and are left out. Shape letters: see
`architectures/layers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swiftlet_models import architectures
from swiftlet_models.artifact import Embedding


@dataclass(frozen=True)
class Operations:
    """Multiply-adds of the parts of a network."""

    embedding: int  # per token
    layers: int
    key_value: int  # per token and layer: keys and values, and the bottlenecks that they read
    after_key_value: int  # per token and layer: everything else except attention
    attention: int  # per layer, and per pair of a token and one that it attends to
    head: int  # per token that the head reads
    causal: bool = False  # whether a token attends only to itself and the tokens before it
    pools: bool = False  # whether the head reads the mean or the maximum of all tokens
    token_head: int = 0  # per token: of a head whose outputs are pooled
    windows: tuple[int | None, ...] = ()  # of each layer: as in `program.Attend`; empty: none has any

    @classmethod
    def of(
        cls,
        architecture: str,
        config: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        embedding: Embedding | None = None,
    ) -> Operations:
        """Counts a network from the shapes of its parameters, which are named as in `architectures.traits`."""
        traits = architectures.describe(architecture).Config(**config).traits()
        sizes = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) == 2}
        if not traits.layers:  # the additions of a mean
            _, width = shapes["encoder.embeddings.word.weight"]
            return cls(width, 0, 0, 0, 0, head=_head(sizes, shapes), pools=True)
        first = f"encoder.{traits.layers[0]}."
        layer = {
            name.removeprefix(first).removesuffix(".weight"): n for name, n in sizes.items() if name.startswith(first)
        }
        bottleneck = traits.bottleneck
        bottlenecks = {bottleneck.query_key, bottleneck.value} - {None} if bottleneck else set()
        parts = {"key", "value", *(f"{name}.dense" for name in bottlenecks)}
        key_value = sum(size for name, size in layer.items() if name in parts)
        after = sum(layer.values()) - key_value
        if relative := traits.relative:  # a token's products with the table of distances, which is mapped once
            maps = sum(size for name, size in layer.items() if name.startswith("relative_"))
            met = 2 * relative.span * shapes[first + "query.weight"][0]
            key_value, after = key_value + relative.from_positions * met, after - maps + relative.to_positions * met
        by_text = traits.classifier_pooling if "head.pooler.weight" in shapes else "cls"
        pooling = embedding.pooling if embedding else by_text
        by_vocabulary = embedding is not None and embedding.by_vocabulary
        return cls(
            embedding=sizes.get("encoder.embeddings.projection.weight", 0),
            layers=len(traits.layers),
            key_value=key_value,
            after_key_value=after,
            attention=2 * shapes[first + "query.weight"][0],
            head=0 if by_vocabulary else _head(sizes, shapes),
            token_head=_head(sizes, shapes) if by_vocabulary else 0,
            causal=traits.causal,
            pools=pooling not in ("cls", "last") or by_vocabulary,
            windows=tuple(part.window for part in traits.attention),
        )

    def count(self, lengths: Sequence[int], focus_counts: Sequence[int]) -> int:
        """Returns the multiply-adds of a batch. The head reads `focus_counts` tokens of sequences of these lengths.

        Of a causal network, it reads the last ones.
        """
        counts = lengths if self.pools else focus_counts  # of the last layer
        tokens, read = sum(lengths), sum(counts)
        *windows, last_window = self.windows or (None,) * max(1, self.layers)
        last_pairs = sum(self._pairs(*pair, last_window) for pair in zip(lengths, counts, strict=True))
        last = tokens * self.key_value + read * self.after_key_value + last_pairs * self.attention
        inner = (self.layers - 1) * tokens * (self.key_value + self.after_key_value)
        inner += sum(self._pairs(n, n, window) for window in windows for n in lengths) * self.attention
        return tokens * (self.embedding + self.token_head) + inner + last + sum(focus_counts) * self.head

    def _pairs(self, length: int, queries: int, window: int | None) -> int:
        """Returns the pairs of one of the last `queries` tokens and a token that it attends to."""
        if window is not None:
            reach = window // 2
            before, after = (min(length - 1, reach), 0 if self.causal else min(length - 1, reach))
            missing = sum(max(0, before - i) for i in range(length - queries, length))
            missing += sum(max(0, after - i) for i in range(queries))
            return queries * (1 + before + after) - missing
        return queries * length - (queries * (queries - 1) // 2 if self.causal else 0)


def _head(sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> int:
    """Returns the multiply-adds of the head per token. The head of a language model multiplies with the word table."""
    names = ("pooler.weight", "output.weight", "transform.weight", "extra", "terms.weight", "vectors.weight")
    words = sizes["encoder.embeddings.word.weight"] if "head.bias" in shapes else 0
    inner = sum(size for name, size in sizes.items() if name.startswith("head.hidden."))
    return words + inner + sum(sizes.get(f"head.{name}", 0) for name in names)
