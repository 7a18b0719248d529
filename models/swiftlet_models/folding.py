"""Folding: turns a network into a program of steps. `folding_parameters.py` computes the parameters of the steps.

A network can be folded whole, or in two parts: its trunk, which is the encoder, and its head, which reads the hidden
states that the trunk has computed. Heads of one trunk then share its work (`swiftlet_models/trunks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np

from swiftlet_models import architectures
from swiftlet_models.architectures.traits import AttentionTraits, BottleneckTraits, Traits
from swiftlet_models.artifact import Artifact, Embedding, Pooling
from swiftlet_models.folded import Folded, FoldingError, Product, beside
from swiftlet_models.folding_parameters import FoldedParameters, rotation
from swiftlet_models.parameters import Sizes, check_artifact, check_parameters, configure
from swiftlet_models.program import (
    GIVEN,
    WORDS,
    Attend,
    Block,
    Gate,
    Index,
    LookUp,
    Multiply,
    Norm,
    NormHeads,
    Place,
    Program,
    Read,
    Rotate,
    Step,
)
from swiftlet_models.tensors import Weights

Part = Literal["network", "trunk", "head"]
UNIT_EPSILON: Final = 1e-24  # of the mean square of a vector: no vector that a network computes is so short
PLAIN: Final = (None, "identity", "unit")  # layers after pooling without an activation
MULTIPLE: Final = 16  # the native engine needs widths that are multiples of its widest vector, 16 floats


def fold(
    architecture: str,
    config: Mapping[str, Any],
    weights: Weights,
    multiple: int = MULTIPLE,
    embedding: Embedding | None = None,
    part: Part = "network",
) -> Folded:
    """Folds a network, or a part of it. Its parameters are named as in `architectures.traits` and `heads`.

    Every width must be a multiple of `multiple`. `embedding` describes the head `embedding`.

    Raises:
        FoldingError: the network is not supported.
        ParametersError: the configuration is invalid, or the parameters do not fit it.
    """
    if architecture not in architectures.names():
        raise FoldingError(f"the architecture {architecture!r} is unknown")
    own = configure(architecture, config)
    sizes = check_parameters(own, {name: weight.shape for name, weight in weights.items()}, embedding=embedding)
    traits = own.traits()
    _check_traits(traits)
    network = _Network(traits, sizes, weights)
    classifies = "head.pooler.weight" in weights
    pooling: Pooling | Literal["late"] | None = traits.classifier_pooling if classifies else "cls"
    if embedding:
        pooling = None if embedding.by_vocabulary else embedding.pooling
    if part == "head":
        network.fold_given(pooling)
    else:
        network.fold_encoder("cls" if part == "trunk" else pooling)
    if part != "trunk":
        network.fold_head(embedding)
    folded = network.folded()
    _check_widths(folded, multiple)
    return folded


def fold_artifact(artifact: Artifact, weights: Weights, multiple: int = MULTIPLE, part: Part = "network") -> Folded:
    """Folds the network of an artifact, or a part of it, from the parameters of one of its files.

    Raises:
        FoldingError: the network is not supported.
        ArtifactError: the parameters do not fit the network that the manifest describes.
    """
    check_artifact(artifact, {name: weight.shape for name, weight in weights.items()})
    manifest = artifact.manifest
    return fold(manifest.architecture, manifest.config, weights, multiple, manifest.embedding, part)


def _check_traits(traits: Traits) -> None:
    """Raises FoldingError for traits that folding and the CPU engines do not support."""
    embedding = traits.embedding
    unsupported = {
        "a NoNorm or a bottleneck is preceded by a norm": traits.norm_position != "after"
        and (traits.norm == "no_norm" or traits.bottleneck is not None),
        "a gate, a rotation, a distance, heads of keys or a norm of heads meets a bottleneck": traits.bottleneck
        is not None
        and any(
            [
                *(traits.relative, traits.key_heads, traits.head_norm, traits.norm == "rms_norm"),
                *(part.theta for part in traits.attention),
                *(network.gate for network in traits.feed_forward),
            ]
        ),
        "distances meet heads of keys or a norm of heads": traits.relative is not None
        and (traits.key_heads is not None or traits.head_norm),
        "norms of all columns or second norms meet a rotation, a bottleneck, or norms in front": (
            traits.wide_norm or traits.second_norm
        )
        and (
            traits.bottleneck is not None
            or traits.relative is not None
            or traits.norm_position != "after"
            or any(part.theta for part in traits.attention)
        ),
        "the embeddings have a NoNorm without a projection in front": embedding.norm == "no_norm"
        and embedding.projection != "words",
        "the trigram is not projected": embedding.window > 1 and embedding.projection != "words",
    }
    for reason, is_present in unsupported.items():
        if is_present:
            raise FoldingError(reason)


class _Network(FoldedParameters):
    """A network that is being folded: its parameters and its blocks of steps so far."""

    def __init__(self, traits: Traits, sizes: Sizes, weights: Weights) -> None:
        super().__init__(traits, sizes, weights)
        self.blocks: list[Block] = []
        self.widths = {"hidden": sizes.hidden, "attended": sizes.attended}
        self.results: tuple[str, ...] = ("hidden",)

    def folded(self) -> Folded:
        program = Program(tuple(self.blocks), self.widths, self.results)
        outputs = sum(self.widths[result] for result in self.results)
        return Folded(program, outputs, self.sizes.positions, self.words, self.products, self.vectors)

    def place(self, value: str) -> Place:
        return Place(value, 0, self.widths[value])

    def norm(self, out: str, x: str, name: str, residual: Place | None = None) -> Norm:
        self.widths[out] = self.widths[x]
        return Norm(out, x, name, self.epsilons[name], name + ".bias" in self.vectors, residual)

    def multiply(self, out: str, x: str, name: str, activation: str | None = None, *, exact: bool = False) -> Multiply:
        self.widths[out] = self.products[name].matrix.shape[0]
        return Multiply(out, x, name, activation=activation, exact=exact)

    def turned(self, attention: AttentionTraits, place: Place, norm: str) -> Iterator[Step]:
        """Yields what follows a query or a key."""
        heads = place.width // self.depth
        if self.traits.head_norm:
            yield NormHeads(place, norm, heads, self.traits.epsilon)
        if attention.theta:
            yield Rotate(place, rotation(attention.theta), heads)

    def add_and_norm(self, out: str, x: str, name: str, residual: Place) -> Iterator[Step]:
        """Yields a product with a residual, and the norm that follows it or the addition, if there is one."""
        if self.norm_first and self.norm_last:
            yield self.multiply("projected", x, name)
            yield self.norm(out, "projected", name + ".norm", residual)
            return
        gain = name + ".gain" if self.traits.norm == "no_norm" else None
        yield replace(self.multiply(out, x, name), residual=residual, gain=gain)
        if self.norm_last:
            yield self.norm(out, out, name + ".norm")

    def fold_encoder(self, pooling: Pooling | Literal["late"] | None) -> None:
        """Folds the encoder. Without a pooling, its rows stay those of all tokens."""
        traits = self.traits
        self.take_tables()
        if traits.position_bias:
            self.take_position_bias(traits.position_bias)
        if traits.relative:
            self.vectors["relative_rows"] = traits.relative.rows(self.sizes.positions).astype(np.float32)
        self.take_rotations()
        self.blocks.append(Block(tuple(self.embeddings())))
        attention_names = self.take_layers(traits.attention_of or traits.layers, self.take_attention)
        network_names = self.take_layers(traits.feed_forward_of or traits.layers, self.take_feed_forward)
        attention = traits.attention or (AttentionTraits(),) * len(traits.layers)
        layers = list(zip(attention_names, network_names, attention, strict=True))
        pools = pooling not in ("cls", "last")  # of all tokens
        for layer, run in groupby(layers if pools else layers[:-1]):
            self.blocks.append(Block(tuple(self.layer(*layer)), len(list(run))))
        if not pools:
            self.blocks.append(Block(tuple(self.layer(*layers[-1], reads=True))))
        end: list[Step] = []
        if self.norm_first:
            self.take_norm("final_norm", "encoder.norm")
            end.append(self.norm("hidden", "hidden", "final_norm"))
        if pooling == "mean" or pooling == "max":
            end.append(Read("hidden", "hidden", pooling))
        if end:
            self.blocks.append(Block(tuple(end)))

    def fold_given(self, pooling: Pooling | Literal["late"] | None) -> None:
        """Takes the hidden states from the caller, and not from an encoder."""
        steps: list[Step] = [LookUp(self.place("hidden"), GIVEN, "given")]
        if pooling in ("mean", "max"):
            steps.append(Read("hidden", "hidden", pooling))
        elif pooling in ("cls", "last"):
            steps.append(Read("hidden", "hidden"))
        self.blocks.append(Block(tuple(steps)))

    def embeddings(self) -> Iterator[Step]:
        traits, width = self.traits.embedding, self.sizes.embedding
        value = "hidden" if traits.projection == "none" else "words"
        self.widths[value] = traits.window * width
        words: tuple[Index, ...] = ("next_word", "word", "previous_word") if traits.window > 1 else ("word",)
        for i, word in enumerate(words):
            yield LookUp(Place(value, i * width, width), WORDS, word)
        projects_words = traits.projection == "words"
        to = self.place("hidden" if projects_words else value)
        if traits.positions:
            yield LookUp(to, "embeddings.position", "position", adds=not projects_words)
        if traits.token_types:
            yield LookUp(to, "embeddings.token_type", "token_type", adds=True)
        if projects_words:
            yield replace(self.multiply("hidden", "words", "embeddings.projection"), residual=to)
        if "embeddings.norm" in self.epsilons:
            yield self.norm(to.value, to.value, "embeddings.norm")
        if traits.projection == "sum":
            yield self.multiply("hidden", "words", "embeddings.projection")

    def layer(self, name: str, networks: str, attention: AttentionTraits, *, reads: bool = False) -> Iterator[Step]:
        """Yields the steps of a layer, whose feed-forward networks may be those of another, `networks`.

        If it is the last one, the head `reads` a part of its rows.
        """
        traits, width = self.traits, self.sizes.keys
        query, key, value = (
            Place("query", 0, self.sizes.attended),
            Place("key_value", 0, width),
            Place("key_value", width, width),
        )
        residual = Place("query", query.width, query.width) if traits.bottleneck else self.place("hidden")
        if self.kept:
            yield from self.narrow_inputs(name, self.kept, reads=reads)
            key, value = Place("key", 0, width), Place("value", 0, width)
            residual = Place(f"narrow.{self.kept.residual}", 0, query.width)
        elif traits.wide_norm:
            yield from self.normed_inputs(name, reads=reads)
            key, value = Place("key", 0, width), Place("value", 0, width)
        else:
            has_norm = name + "attention_norm.weight" in self.vectors
            x = "normed" if has_norm else "hidden"
            preceding = [self.norm(x, "hidden", name + "attention_norm")] if has_norm else []
            turn_key = list(self.turned(attention, key, name + "key_norm"))
            turn_query = list(self.turned(attention, query, name + "query_norm"))
            yield from preceding
            yield self.multiply("key_value", x, name + "key_value")
            if reads:
                yield from turn_key
                yield Read("hidden", "hidden")
                yield from preceding
            yield self.multiply("query", x, name + "query_residual")
            yield from turn_query if reads else [*turn_key, *turn_query]
        yield Attend(
            "attended",
            query=query,
            key=key,
            value=value,
            heads=traits.heads,
            key_heads=self.key_heads,
            causal=traits.causal,
            window=attention.window,
            bias="position_bias" if traits.position_bias else None,
            relative=self.relative(name),
        )
        stream = "inner" if traits.bottleneck else "hidden"
        if traits.second_norm:
            yield replace(self.multiply("projected", "attended", name + "output"), residual=residual)
            yield self.norm("projected", "projected", name + "output.norm", residual)
            yield self.norm(stream, "projected", name + "second_norm")
        else:
            yield from self.add_and_norm(stream, "attended", name + "output", residual)
        for j, parts in enumerate(traits.feed_forward):
            network, x = f"{networks}feed_forward.{j}.", stream
            if self.norm_first:
                x = "normed"
                yield self.norm(x, stream, network + "norm")
            yield self.multiply("widened", x, network + "inner", None if parts.gate else traits.activation)
            if parts.gate:
                self.widths["gated"] = self.sizes.intermediate
                yield Gate("gated", "widened", traits.activation)
            yield from self.add_and_norm(
                stream, "gated" if parts.gate else "widened", network + "outer", self.place(stream)
            )
        if traits.bottleneck:
            yield from self.add_and_norm("hidden", "inner", name + "leave", self.place("hidden"))

    def normed_inputs(self, name: str, *, reads: bool) -> Iterator[Step]:
        """Yields key, value and query, where a norm of all columns follows key and query."""
        yield self.multiply("key", "hidden", name + "key")
        yield self.norm("key", "key", name + "key_norm")
        yield self.multiply("value", "hidden", name + "value")
        if reads:
            yield Read("hidden", "hidden")
        yield self.multiply("query", "hidden", name + "query_residual")
        yield self.norm("query", "query", name + "query_norm")

    def narrow_inputs(self, name: str, bottleneck: BottleneckTraits, *, reads: bool) -> Iterator[Step]:
        """Yields the bottlenecks that have a LayerNorm, and the query, key and value that read them."""
        residual, query_key, value = astuple(bottleneck)

        def narrow(*inners: str | None) -> Iterator[Step]:
            for inner in dict.fromkeys(inners):
                if inner:
                    yield self.multiply(f"narrow.{inner}", "hidden", name + inner)
                    yield self.norm(f"narrow.{inner}", f"narrow.{inner}", f"{name}{inner}.norm")

        def reading(out: str, inner: str | None) -> Step:
            return self.multiply(out, f"narrow.{inner}" if inner else "hidden", name + out)

        yield from narrow(query_key, value)
        yield reading("key", query_key)
        yield reading("value", value)
        if reads:
            yield Read("hidden", "hidden")
        there = () if reads else (query_key, value)
        yield from narrow(*(inner for inner in (query_key, residual) if inner not in there))
        yield reading("query", query_key)

    def fold_head(self, embedding: Embedding | None) -> None:
        if embedding and not embedding.by_vocabulary:
            steps = tuple(self.vectors_of(embedding))
        else:
            self.results = ("outputs",)
            steps = tuple(self.head())
        if embedding and embedding.by_vocabulary:
            steps = (*steps, Read("outputs", "outputs", "max"))
        if steps:
            self.blocks.append(Block(steps))

    def vectors_of(self, embedding: Embedding) -> Iterator[Step]:
        """Yields the steps of the head `embedding`, and names their results."""
        self.results = ("hidden",) if embedding.vector and not embedding.dense else ()
        parts = {
            "output": embedding.vector and embedding.dense is not None,
            "terms": embedding.sparse is not None,
            "vectors": embedding.multi_vector is not None,
        }
        if embedding.dense == "unit":
            # |x| is the root mean square of x, times the root of its width.
            self.vectors["head.norm.weight"] = np.full(self.sizes.hidden, self.sizes.hidden**-0.5, np.float32)
            self.epsilons["head.norm"] = UNIT_EPSILON
            yield self.norm("hidden", "hidden", "head.norm")
        x = "hidden"
        for i in range(len(embedding.hidden_widths)):
            self.products[f"head.hidden.{i}"] = self.product(f"head.hidden.{i}")
            yield self.multiply(f"inner.{i}", x, f"head.hidden.{i}", "relu", exact=True)
            x = f"inner.{i}"
        for name in (name for name, is_there in parts.items() if is_there):
            self.products[f"head.{name}"] = self.product(f"head.{name}")
            self.results += (f"outputs.{name}",)
            activation = embedding.dense if name == "output" and embedding.dense not in PLAIN else None
            # The vectors of all tokens are too many for an exact product.
            read = x if name == "output" else "hidden"
            yield self.multiply(f"outputs.{name}", read, f"head.{name}", activation, exact=name != "vectors")

    def head(self) -> Iterator[Step]:
        x, inner = "hidden", {"head.transform": self.traits.prediction_act, "head.pooler": self.traits.pooler}
        for name, act in inner.items():
            if name + ".weight" in self.weights:
                x = "transformed"
                self.products[name] = self.product(name)
                yield self.multiply(x, "hidden", name, act)
                if name == "head.pooler" and self.traits.classifier_pooling == "late":
                    yield Read(x, x, "mean")
        if "head.norm.weight" in self.weights:
            self.take_norm("head.norm", "head.norm")
            yield self.norm(x, x, "head.norm")
        if "head.bias" in self.weights:  # of a language model
            table = self.table
            if "head.extra" in self.weights:
                table = beside(table, self.weights["head.extra"])
            self.products["head.decoder"] = Product(table, self.array("head.bias"))
            yield self.multiply("outputs", x, "head.decoder")
            return
        self.products["head.output"] = self.product("head.output")
        yield self.multiply("outputs", x, "head.output", exact=True)


def _check_widths(folded: Folded, multiple: int) -> None:
    """Raises FoldingError if a width inside the network is no multiple of `multiple`."""
    program = folded.program
    widths = {width for value, width in program.widths.items() if value == "hidden" or value not in program.results}
    widths |= {step.query.width // step.heads for step in program if isinstance(step, Attend)}
    widths |= {step.x.width // step.heads // 2 for step in program if isinstance(step, Rotate)}
    widths |= {step.x.width // step.heads for step in program if isinstance(step, NormHeads)}
    widths |= {product.matrix.shape[1] for product in folded.products.values()}
    for width in sorted(widths):
        if width % multiple:
            raise FoldingError(f"one of the widths is {width}, which is not a multiple of {multiple}")
