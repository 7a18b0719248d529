"""A network's parameters as the few products that engines on a CPU run. Every rewrite is exact.

- The scale of attention's scores, 1 / sqrt(D), goes into the query. Key and value are one product.
- A NoNorm y = g x + b after x = W v + c + r, a product and a residual, needs no pass of its own: g goes into the
  product's rows, g c + b is its bias, and the residual is added g times (the "gain").
- MobileBERT's key and query have no nonlinearity between them and the bottleneck they share: two matrices are one.
  The inner residual comes from the same product as the query.
- Position and token type of MobileBERT are added after the projection, and so take its NoNorm's gain.
- The masked-LM head's word table and the columns that it lacks are one matrix.

`products` are (N, K) with a bias (N,), `vectors` everything else, `words` the word table (V, E). Names:

    embeddings.position, .token_type, .norm.weight and .bias (not MobileBERT), .projection (not BERT)
    layers.I.kv, .qr (query; MobileBERT: and inner residual), .output, .ffns.J.in and .out,
        .attention_norm.* and .ffn_norm.* (not MobileBERT), .leave, .output_gain, .leave_gain, .ffns.J.gain (MobileBERT)
    head.transform, .norm.weight and .bias, .decoder; or head.pooler (where there is one), .output, .output_bias
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.errors import ModelError

Array = NDArray[np.floating[Any]]
Weights = Mapping[str, Array]

MULTIPLE: Final = 16  # of which every width has to be one in the native engine: the pipelines of the widest vectors

# The settings that shapes of weights do not tell, with the defaults of `architectures`.
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bert": {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
    "albert": {
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "num_attention_heads": 12,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
    },
    "mobilebert": {
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_feedforward_networks": 4,
        "hidden_act": "relu",
        "normalization_type": "no_norm",
        "trigram_input": True,
        "use_bottleneck": True,
        "use_bottleneck_attention": False,
        "key_query_shared_bottleneck": True,
        "layer_norm_eps": 1e-12,
    },
}
# Of MobileBERT's family, what the released one is.
RELEASED: Final = (
    "hidden_act",
    "normalization_type",
    "trigram_input",
    "use_bottleneck",
    "use_bottleneck_attention",
    "key_query_shared_bottleneck",
)


class FoldingError(ModelError):
    """The network is not one of those that are folded here; the message is a clause that says why."""


@dataclass(frozen=True)
class Product:
    """y = x W^T + b."""

    weight: Array  # (N, K)
    bias: Array  # (N,)


@dataclass
class Folded:
    """A network, ready to be quantised."""

    architecture: str
    hidden: int
    inner: int  # the width inside a layer
    intermediate: int
    heads: int
    networks: int  # feed-forward networks in a layer
    activation: str
    epsilon: float
    order: tuple[int, ...]  # which of the layers comes at each depth
    outputs: int
    words: Array  # (V, E)
    products: dict[str, Product] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)


def fold(architecture: str, config: Mapping[str, Any], weights: Weights, multiple: int = MULTIPLE) -> Folded:
    """Folds a network whose parameters have the names that `models.architectures` and `models.heads` give them.

    `multiple` is of what number every width has to be a multiple.

    Raises:
        FoldingError: it is another kind of network, or its parameters are not those of the network described.
    """
    if architecture not in DEFAULTS:
        raise FoldingError(f"its architecture is {architecture!r}")
    settings = {**DEFAULTS[architecture], **config}
    given = _Noted(weights)
    try:
        folded = _fold_mobilebert(settings, given) if architecture == "mobilebert" else _fold_bert(settings, given)
        _fold_head(folded, given)
    except KeyError as error:
        raise FoldingError(f"it has no parameter {error}") from None
    except (ValueError, TypeError, ZeroDivisionError):
        raise FoldingError("its parameters have other shapes than its description says") from None
    for name in sorted(weights.keys() - given.read):
        raise FoldingError(f"it has a parameter {name!r} more")
    _check(folded, multiple)
    return folded


class _Noted(dict[str, Array]):
    """Parameters that note which of them were read."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        self.read.add(name)
        return super().__getitem__(name)


def _fold_bert(settings: Mapping[str, Any], weights: Weights) -> Folded:
    """BERT, and ALBERT, whose layers are in groups and whose words are projected."""
    albert = "num_hidden_groups" in settings
    depth, heads = int(settings["num_hidden_layers"]), int(settings["num_attention_heads"])
    if albert:
        groups, each = int(settings["num_hidden_groups"]), int(settings["inner_group_num"])
        names = [f"encoder.groups.{g}.{i}." for g in range(groups) for i in range(each)]
        # As in `architectures/albert.py`, and for the reason given there.
        order = tuple(int(d / (depth / groups)) * each + i for d in range(depth) for i in range(each))
    else:
        names, order = [f"encoder.layers.{i}." for i in range(depth)], tuple(range(depth))
    first = weights[names[0] + "ffn_in.weight"]
    folded = Folded(
        architecture="albert" if albert else "bert",
        hidden=first.shape[1],
        inner=first.shape[1],
        intermediate=first.shape[0],
        heads=heads,
        networks=1,
        activation=settings["hidden_act"],
        epsilon=float(settings["layer_norm_eps"]),
        order=order,
        outputs=0,
        words=weights["encoder.embeddings.word.weight"],
    )
    for name in ("position", "token_type"):
        folded.vectors[f"embeddings.{name}"] = weights[f"encoder.embeddings.{name}.weight"]
    _take_norm(folded, "embeddings.norm", weights, "encoder.embeddings.norm")
    if albert:
        folded.products["embeddings.projection"] = _product(weights, "encoder.embeddings.projection")
    for i, name in enumerate(names):
        own = f"layers.{i}."
        folded.products[own + "kv"] = _stack(_product(weights, name + "key"), _product(weights, name + "value"))
        query = _product(weights, name + "query")
        folded.products[own + "qr"] = _scaled(query, _softened(query, heads))
        folded.products[own + "output"] = _product(weights, name + "output")
        folded.products[own + "ffns.0.in"] = _product(weights, name + "ffn_in")
        folded.products[own + "ffns.0.out"] = _product(weights, name + "ffn_out")
        for norm in ("attention_norm", "ffn_norm"):
            _take_norm(folded, own + norm, weights, name + norm)
    return folded


def _fold_mobilebert(settings: Mapping[str, Any], weights: Weights) -> Folded:
    for name in RELEASED:
        if settings[name] != DEFAULTS["mobilebert"][name]:
            raise FoldingError(f"its {name} is {settings[name]!r}")
    depth, heads = int(settings["num_hidden_layers"]), int(settings["num_attention_heads"])
    networks = int(settings["num_feedforward_networks"])
    narrow = weights["encoder.layers.0.enter.dense.weight"]
    folded = Folded(
        architecture="mobilebert",
        hidden=narrow.shape[1],
        inner=narrow.shape[0],
        intermediate=weights["encoder.layers.0.last_ffn.dense_in.weight"].shape[0],
        heads=heads,
        networks=networks,
        activation=settings["hidden_act"],
        epsilon=float(settings["layer_norm_eps"]),
        order=tuple(range(depth)),
        outputs=0,
        words=weights["encoder.embeddings.word.weight"],
    )
    gain = weights["encoder.embeddings.norm.weight"]
    folded.products["embeddings.projection"] = _normed(
        weights, "encoder.embeddings.projection", "encoder.embeddings.norm"
    )
    for name in ("position", "token_type"):
        folded.vectors[f"embeddings.{name}"] = weights[f"encoder.embeddings.{name}.weight"] * gain
    for i in range(depth):
        name, own = f"encoder.layers.{i}.", f"layers.{i}."
        shared = _normed(weights, name + "enter_attention.dense", name + "enter_attention.norm")
        query = _after(_product(weights, name + "query"), shared)
        key = _after(_product(weights, name + "key"), shared)
        residual = _normed(weights, name + "enter.dense", name + "enter.norm")
        folded.products[own + "kv"] = _stack(key, _product(weights, name + "value"))
        folded.products[own + "qr"] = _stack(_scaled(query, _softened(query, heads)), residual)
        folded.products[own + "output"] = _normed(weights, name + "output", name + "attention_norm")
        folded.vectors[own + "output_gain"] = weights[name + "attention_norm.weight"]
        for j in range(networks):
            ffn = name + (f"ffns.{j}" if j < networks - 1 else "last_ffn")
            folded.products[f"{own}ffns.{j}.in"] = _product(weights, ffn + ".dense_in")
            folded.products[f"{own}ffns.{j}.out"] = _normed(weights, ffn + ".dense_out", ffn + ".norm")
            folded.vectors[f"{own}ffns.{j}.gain"] = weights[ffn + ".norm.weight"]
        folded.products[own + "leave"] = _normed(weights, name + "leave", name + "leave_norm")
        folded.vectors[own + "leave_gain"] = weights[name + "leave_norm.weight"]
    return folded


def _fold_head(folded: Folded, weights: Weights) -> None:
    if "head.transform.weight" in weights:
        folded.products["head.transform"] = _product(weights, "head.transform")
        _take_norm(folded, "head.norm", weights, "head.norm")
        table = folded.words
        if "head.extra" in weights:
            table = np.concatenate([table, weights["head.extra"]], axis=1)
        folded.products["head.decoder"] = Product(table, weights["head.bias"])
        folded.outputs = len(table)
        return
    if "head.pooler.weight" in weights:
        folded.products["head.pooler"] = _product(weights, "head.pooler")
    folded.vectors["head.output"] = weights["head.output.weight"]
    folded.vectors["head.output_bias"] = weights["head.output.bias"]
    folded.outputs = len(weights["head.output.bias"])


def _check(folded: Folded, multiple: int) -> None:
    """Raises FoldingError where a shape is not the one that the others imply."""
    h, c, i, e = folded.hidden, folded.inner, folded.intermediate, folded.words.shape[1]
    for width in (h, c, i, e, c // folded.heads):
        if width % multiple:
            raise FoldingError(f"a width of it is {width}, which is no multiple of {multiple}")
    thin = folded.architecture == "mobilebert"
    wide = h if thin else e  # of what is added to a word
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.projection": (h, 3 * e if thin else e),
        "head.transform": (folded.products["head.decoder"].weight.shape[1], h)
        if "head.transform" in folded.products
        else (),
        "head.decoder": (len(folded.words), folded.products["head.decoder"].weight.shape[1])
        if "head.decoder" in folded.products
        else (),
        "head.pooler": (h, h),
        "kv": (2 * c, h),
        "qr": (2 * c if thin else c, h),
        "output": (c, c),
        "in": (i, c),
        "out": (c, i),
        "leave": (h, c),
    }
    for name, product in folded.products.items():
        expected = shapes[name] if name in shapes else shapes[name.rpartition(".")[2]]
        if product.weight.shape != expected or product.bias.shape != expected[:1]:
            raise FoldingError(f"its {name} has an unexpected shape")
        if min(product.weight.shape) % multiple and name != "head.decoder":
            raise FoldingError(f"its {name} has a width that is no multiple of {multiple}")
    lengths = {"embeddings.position": wide, "embeddings.token_type": wide, "embeddings.norm": e, "head.output": h}
    for name, vector in folded.vectors.items():
        stem = name.removesuffix(".weight").removesuffix(".bias")
        if name == "head.output_bias":
            expected = (folded.outputs,)
        elif name == "head.output":
            expected = (folded.outputs, h)
        elif name in lengths:
            expected = (vector.shape[0], lengths[name])
        elif stem == "head.norm":
            expected = folded.products["head.transform"].bias.shape
        elif stem in lengths:
            expected = (lengths[stem],)
        else:
            expected = (h if name.endswith("leave_gain") else c,)
        if vector.shape != expected:
            raise FoldingError(f"its {name} has an unexpected shape")
    if max(folded.order, default=-1) + 1 != len(
        {name.split(".")[1] for name in folded.products if name.startswith("layers.")}
    ):
        raise FoldingError("its layers are not as many as its description says")


def _product(weights: Weights, name: str) -> Product:
    return Product(weights[name + ".weight"], weights[name + ".bias"])


def _normed(weights: Weights, name: str, norm: str) -> Product:
    """The product before a NoNorm, with that NoNorm in it."""
    product, gain, bias = _product(weights, name), weights[norm + ".weight"], weights[norm + ".bias"]
    return Product(product.weight * gain[:, None], product.bias * gain + bias)


def _scaled(product: Product, factor: float) -> Product:
    return Product(product.weight * factor, product.bias * factor)


def _softened(query: Product, heads: int) -> float:
    """1 / sqrt(D), for the D of the query's heads."""
    return 1 / math.sqrt(len(query.bias) / heads)


def _after(outer: Product, inner: Product) -> Product:
    """outer(inner(x)) as one product, in the precision that was given but computed in double."""
    w, v = outer.weight.astype(np.float64), inner.weight.astype(np.float64)
    bias = w @ inner.bias.astype(np.float64) + outer.bias
    return Product((w @ v).astype(outer.weight.dtype), bias.astype(outer.bias.dtype))


def _stack(*products: Product) -> Product:
    return Product(np.concatenate([p.weight for p in products]), np.concatenate([p.bias for p in products]))


def _take_norm(folded: Folded, name: str, weights: Weights, given: str) -> None:
    for part in (".weight", ".bias"):
        folded.vectors[name + part] = weights[given + part]
