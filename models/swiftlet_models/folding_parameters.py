"""Computes the parameters of a folded network's steps from those of the network.

Every rewrite is exact:

- The scale of the attention scores is folded into the query, or into its norm. Key and value are one product.
- NoNorm needs no pass of its own. In y = g x + b after x = W v + c + r, a product and a residual, g scales the rows of
  the product, g c + b is its bias, and the residual is multiplied by g (the "gain").
- A query, key or value that reads a bottleneck has no nonlinearity in front of it: two matrices become one.
- The residual inside a layer with a bottleneck comes from the same product as the query.
- A position bias is looked up for every distance between a query and a key, so that a query's row is a slice of it.
- The row of the only token type, if the network has one, is part of every position, or of every word.
- Positions and token types that are added to projected words are scaled by the gain of the NoNorm that follows.
- The masked-LM head's word table and its extra columns are one matrix.

Products and words are computed from the parameters when they are read, rows by rows, so that a network in fp32 is never
in memory as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from swiftlet_models.architectures.traits import (
    LinearBias,
    PositionBias,
    RelativeTraits,
    Traits,
)
from swiftlet_models.folded import Array, Product, compose, scaled, stack, times
from swiftlet_models.parameters import Sizes
from swiftlet_models.program import Relative
from swiftlet_models.tensors import Computed, Matrix, Weights


class FoldedParameters:
    """The parameters that the steps of a network have taken so far."""

    def __init__(self, traits: Traits, sizes: Sizes, weights: Weights) -> None:
        self.traits, self.sizes, self.weights = traits, sizes, weights
        self.table = weights["encoder.embeddings.word.weight"]
        self.words: Matrix | None = None
        self.products: dict[str, Product] = {}
        self.vectors: dict[str, Array] = {}
        self.epsilons: dict[str, float] = {}
        self.depth = sizes.attended // traits.heads
        self.key_heads = traits.key_heads or traits.heads
        self.scale = traits.score_scale or 1 / math.sqrt(self.depth)
        self.norm_first = traits.norm_position != "after"
        self.norm_last = traits.norm != "no_norm" and traits.norm_position != "before"
        self.kept = traits.bottleneck if traits.norm == "layer_norm" else None  # bottlenecks that do not fold

    def array(self, name: str) -> Array:
        return np.asarray(self.weights[name])

    def product(self, name: str) -> Product:
        return Product(self.weights[name + ".weight"], self.array(name + ".bias"))

    def take_norm(self, name: str, source: str) -> None:
        self.vectors[name + ".weight"] = self.array(source + ".weight") + self.traits.norm_offset
        if self.traits.norm != "rms_norm":
            self.vectors[name + ".bias"] = self.array(source + ".bias")
        own = (epsilon for ending, epsilon in self.traits.epsilons.items() if f".{source}".endswith(f".{ending}"))
        self.epsilons[name] = next(own, self.traits.epsilon)

    def with_no_norm(self, name: str, norm: str) -> Product:
        """Returns a product and the NoNorm that follows it as one product."""
        product, gain, bias = self.product(name), self.array(norm + ".weight"), self.array(norm + ".bias")
        matrix = product.matrix
        scaled = Computed(matrix.shape, matrix.dtype, lambda rows: matrix[rows] * gain[rows, None])
        return Product(scaled, product.bias * gain + bias)

    def bottleneck(self, name: str) -> Product:
        return self.with_no_norm(name + ".dense", name + ".norm")

    def take_residual_product(self, name: str, source: str, product: str, norm: str) -> None:
        """Takes a product that a residual is added to, and the norm that follows it or the addition, if any does."""
        if self.traits.norm == "no_norm":
            self.products[name] = self.with_no_norm(source + product, source + norm)
            self.vectors[name + ".gain"] = self.array(f"{source}{norm}.weight")
        else:
            self.products[name] = self.product(source + product)
            if self.norm_last:
                self.take_norm(name + ".norm", source + (f"{product}_norm" if self.norm_first else norm))

    def take_tables(self) -> None:
        traits, source = self.traits.embedding, "encoder.embeddings."
        words = self.table if traits.scale == 1 else times(self.table, traits.scale)
        tables = {}
        if traits.positions:
            tables["embeddings.position"] = self.array(source + "position.weight")[traits.position_offset :]
        if traits.token_types:
            tables["embeddings.token_type"] = self.array(source + "token_type.weight")
        elif source + "token_type.weight" in self.weights:
            (row,) = self.array(source + "token_type.weight")
            if traits.positions:
                tables["embeddings.position"] = tables["embeddings.position"] + row
            else:
                plain = words
                words = Computed(plain.shape, plain.dtype, lambda rows: plain[rows] + row)
        if traits.norm == "no_norm":
            gain = self.array(source + "norm.weight")
            self.products["embeddings.projection"] = self.with_no_norm(source + "projection", source + "norm")
            tables = {name: table * gain for name, table in tables.items()}
        else:
            if traits.norm != "none":
                self.take_norm("embeddings.norm", source + "norm")
            if traits.projection != "none":
                self.products["embeddings.projection"] = self.product(source + "projection")
        self.vectors |= tables
        self.words = words

    def take_position_bias(self, bias: PositionBias | LinearBias) -> None:
        longest = self.sizes.positions
        if isinstance(bias, LinearBias):
            self.vectors["position_bias"] = bias.table(longest, self.traits.heads)
            return
        table = self.array("encoder.position_bias.weight")  # (buckets, A)
        self.vectors["position_bias"] = table[[bias.bucket(d) for d in range(1 - longest, longest)]].T

    def take_distances(self, name: str, source: str, relative: RelativeTraits, scale: float) -> None:
        """Takes what a layer makes of the table of distances, which is the same for every text."""
        table = self.array("encoder.relative.weight")
        if relative.norm:
            weight, bias = (self.array(f"encoder.relative_norm.{part}") for part in ("weight", "bias"))
            centred = table - table.mean(1, keepdims=True)
            variance = (centred**2).mean(1, keepdims=True)
            table = centred / np.sqrt(variance + self.traits.epsilon) * weight + bias
        prefix = "" if relative.shared else "relative_"
        for part, factor, is_read in (("key", 1, relative.to_positions), ("query", scale, relative.from_positions)):
            if is_read:
                product = self.product(source + prefix + part)
                self.vectors[f"{name}relative_{part}"] = (table @ product.weight.T + product.bias) * factor

    def relative(self, name: str) -> Relative | None:
        if not self.traits.relative:
            return None
        key, query = (f"{name}relative_{part}" for part in ("key", "query"))
        return Relative("relative_rows", key if key in self.vectors else None, query if query in self.vectors else None)

    def take_rotations(self) -> None:
        for part in dict.fromkeys(replace(part, window=None) for part in self.traits.attention if part.theta):
            self.vectors[rotation(part.theta)] = part.turns(self.sizes.positions, self.depth)

    def take_layers(self, layers: Sequence[str], take: Callable[[str, str], None]) -> list[str]:
        """Takes a part of each distinct layer once. Returns the new name of each layer."""
        names = {layer: f"layers.{i}." for i, layer in enumerate(dict.fromkeys(layers))}
        for layer, name in names.items():
            take(name, f"encoder.{layer}.")
        return [names[layer] for layer in layers]

    def take_feed_forward(self, name: str, source: str) -> None:
        for j, network in enumerate(self.traits.feed_forward):
            to = f"{name}feed_forward.{j}."
            inner = [self.product(source + part) for part in (network.gate, network.inner) if part]
            self.products[to + "inner"] = stack(*inner)
            if self.norm_first:
                self.take_norm(to + "norm", source + network.norm)
            self.take_residual_product(to + "outer", source, network.outer, network.norm)

    def take_attention(self, name: str, source: str) -> None:
        bottleneck = self.traits.bottleneck
        if bottleneck:
            self.take_residual_product(name + "leave", source, "leave", "leave_norm")
        query, key, value = (self.product(source + part) for part in ("query", "key", "value"))
        if self.kept:
            for inner in filter(None, {self.kept.residual, self.kept.query_key, self.kept.value}):
                self.products[name + inner] = self.product(f"{source}{inner}.dense")
                self.take_norm(f"{name}{inner}.norm", f"{source}{inner}.norm")
            self.products |= {name + "key": key, name + "value": value}
            self.products[name + "query"] = scaled(query, self.scale)
            self.take_residual_product(name + "output", source, "output", "attention_norm")
            return
        if bottleneck and bottleneck.query_key:
            entry = self.bottleneck(source + bottleneck.query_key)
            query, key = compose(query, entry), compose(key, entry)
        if bottleneck and bottleneck.value:
            value = compose(value, self.bottleneck(source + bottleneck.value))
        scale = self.scale
        if self.traits.wide_norm:
            self.products |= {name + "key": key, name + "value": value, name + "query_residual": query}
            for part, factor in (("query_norm", scale), ("key_norm", 1.0)):
                self.take_norm(name + part, source + part)
                for each in (".weight", ".bias"):
                    self.vectors[name + part + each] = self.vectors[name + part + each] * factor
        else:
            self.products[name + "key_value"] = stack(key, value)
        if self.traits.second_norm:
            self.take_norm(name + "second_norm", source + "second_norm")
        if relative := self.traits.relative:
            scale /= math.sqrt(1 + relative.to_positions + relative.from_positions)
            self.take_distances(name, source, relative, scale)
        if self.traits.head_norm:
            for part, factor in (("query_norm", scale), ("key_norm", 1)):
                self.vectors[name + part] = (self.array(f"{source}{part}.weight") + self.traits.norm_offset) * factor
        elif not self.traits.wide_norm:
            query = scaled(query, scale)
        if bottleneck:
            query = stack(query, self.bottleneck(source + bottleneck.residual))
        self.products[name + "query_residual"] = query
        if self.norm_first and source + "attention_norm.weight" in self.weights:
            self.take_norm(name + "attention_norm", source + "attention_norm")
        self.take_residual_product(name + "output", source, "output", "attention_norm")


def rotation(theta: float | None) -> str:
    return f"rotation.{theta}"
