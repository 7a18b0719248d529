"""Fits MobileBERT's layers, which have bottlenecks, to the layers of a BERT or an ALBERT.

Each layer is fitted to a layer of the teacher, by linear regressions on a sample of texts. The layers are fitted in
order: each reads the output of the student's fitted layers, and corrects their errors. NoNorm keeps a layer
linear, except for its neurons. Without this initialisation, a network that cannot normalise learns almost nothing in
the training time of a CPU.

Shape letters: see `architectures/layers.py`; N counts the tokens of the sample (R, S), C is the width inside a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from swiftlet_models.architectures.layers import ACTIVATIONS, Encoder, attend, padding_bias
from swiftlet_models.architectures.traits import Traits
from swiftlet_train.initialisation.fitting import (
    Sample,
    common_directions,
    covariance,
    fit,
    inverse,
    matrix_root,
    regress,
)
from swiftlet_train.initialisation.standard_layers import (
    StandardLayer,
    neuron_contributions,
    standard_layers,
)
from swiftlet_train.teachers.depth import teacher_layer

MIN_RESIDUAL_SCALE: Final = 0.05  # per dimension of the hidden states, because the fit divides by it


@dataclass(frozen=True, eq=False)
class BottleneckLayer:
    """A layer whose query and key read a bottleneck of their own, and whose value reads the hidden states."""

    module: Any
    enter: Any
    """The bottleneck of the residual."""
    enter_attention: Any
    """The bottleneck of query and key."""
    feed_forward: list[tuple[Any, Any]]
    """The inner and outer linear maps of each feed-forward network."""
    activation: Callable[[Tensor], Tensor]


def bottleneck_layers(encoder: Encoder) -> list[BottleneckLayer]:
    """Returns the layers of an encoder in order."""
    traits = encoder.config.traits()
    assert traits.bottleneck is not None  # noqa: S101  # for the type checker
    assert traits.bottleneck.query_key is not None  # noqa: S101  # for the type checker
    return [
        BottleneckLayer(
            layer,
            layer.get_submodule(traits.bottleneck.residual),
            layer.get_submodule(traits.bottleneck.query_key),
            [(layer.get_submodule(names.inner), layer.get_submodule(names.outer)) for names in traits.feed_forward],
            ACTIVATIONS[traits.activation],
        )
        for layer in encoder.applied_layers()
    ]


def can_fit_layers(encoder: Encoder, teacher: Encoder) -> bool:
    """Returns whether the layers can be fitted, not only the embeddings.

    They need NoNorm, a bottleneck for query and key only, an inner width up to the hidden size, and as many heads as
    the teacher.
    """
    traits: Traits = encoder.config.traits()
    bottleneck = traits.bottleneck
    if bottleneck is None or bottleneck.query_key is None or bottleneck.value is not None or traits.norm != "no_norm":
        return False
    inner_size = encoder.applied_layers()[0].query.out_features
    return inner_size <= encoder.config.hidden_size and traits.heads == teacher.config.traits().heads


def fit_layers(encoder: Encoder, teacher: Encoder, features: Sequence[Tensor], sample: Sample) -> None:
    """Fits the layers of a student, whose embeddings are fitted already.

    `features` are the teacher's embeddings and the outputs of its layers on the sample, (R, S, H) each.
    """
    sources, layers = standard_layers(teacher), bottleneck_layers(encoder)
    hidden: Tensor = encoder.embeddings(sample.input_ids, sample.token_type_ids, sample.is_token)
    bias = padding_bias(sample.is_token, hidden.dtype)
    for number, layer in enumerate(layers, start=1):
        last = teacher_layer(number, len(layers), len(sources))
        fit_layer(layer, sources[last - 1], hidden, features[last - 1], features[last], sample.is_token)
        hidden = layer.module(hidden, bias)


def fit_layer(
    layer: BottleneckLayer, source: StandardLayer, hidden: Tensor, inputs: Tensor, outputs: Tensor, is_token: Tensor
) -> None:
    """Fits a layer with the input `hidden` (R, S, H) to a layer of the teacher.

    The teacher's layer maps `inputs` to `outputs`, (R, S, H) each. `is_token` (R, S) is false for padding.
    """
    module, teacher = layer.module, source.module
    bias = padding_bias(is_token, hidden.dtype)
    parts = teacher.query(inputs), teacher.key(inputs), teacher.value(inputs)
    context = attend(*parts, teacher.heads, bias)
    query, key, value = (part[is_token] for part in parts)
    fit_attention(layer, source, hidden[is_token], (query, key, value), context[is_token])
    neuron_inputs = teacher.attention_norm(inputs + teacher.output(context))[is_token]  # (N, H)
    wanted, h = outputs[is_token], hidden[is_token]

    # The inner width holds the directions of the largest variance of the feed-forward network's input and output.
    basis = common_directions(neuron_inputs, wanted, module.output.out_features)  # (H, C)
    inner = (neuron_inputs - neuron_inputs.mean(0)) @ basis
    key_query = layer.enter_attention(hidden)
    attended = attend(module.query(key_query), module.key(key_query), module.value(hidden), module.heads, bias)
    attended = attended[is_token]
    weight, constant = regress(torch.cat([h, attended], 1), inner)
    layer.enter.dense.weight.copy_(weight[: h.shape[1]].T)
    layer.enter.dense.bias.zero_()
    module.output.weight.copy_(weight[h.shape[1] :].T)
    module.output.bias.copy_(constant)
    x = layer.enter(h) + module.output(attended)
    x = fit_feed_forward(layer, source, x, neuron_inputs, (wanted - wanted.mean(0)) @ basis)

    # The output is a linear map of the inner state plus the scaled residual.
    scale = residual_scale(x, h, wanted).clamp(min=MIN_RESIDUAL_SCALE)
    fit(module.leave, x, wanted / scale - h)
    module.leave_norm.weight.copy_(scale)
    module.leave_norm.bias.zero_()


def fit_attention(
    layer: BottleneckLayer, source: StandardLayer, h: Tensor, parts: tuple[Tensor, Tensor, Tensor], context: Tensor
) -> None:
    """Fits query, key and value to the most important directions of each of the teacher's heads.

    h (N, H) is the student's hidden state. `parts` are the teacher's queries, keys and values, and `context` is the
    weighted sum of values, (N, H) each.
    """
    module, teacher = layer.module, source.module
    heads, width = teacher.heads, module.query.out_features // teacher.heads
    query, key, value = parts
    outputs = teacher.output.weight.chunk(heads, dim=1)  # (H, D) each
    pairs = zip(query.chunk(heads, 1), key.chunk(heads, 1), strict=True)
    narrowed = [narrow_query_key(q, k, width) for q, k in pairs]
    queries, keys = (torch.cat(parts, 1) for parts in zip(*narrowed, strict=True))  # (N, C) each
    values = torch.cat(
        [
            v @ value_directions(z, output, width)
            for v, z, output in zip(value.chunk(heads, 1), context.chunk(heads, 1), outputs, strict=True)
        ],
        dim=1,
    )
    weight, _ = regress(h, torch.cat([queries, keys], 1))
    root = matrix_root(covariance(h))
    directions, _, _ = torch.linalg.svd(root @ weight, full_matrices=False)
    shared = inverse(root) @ directions[:, : module.query.in_features]  # (H, C)
    layer.enter_attention.dense.weight.copy_(shared.T)
    layer.enter_attention.dense.bias.copy_(-h.mean(0) @ shared)
    key_query = layer.enter_attention(h)
    fit(module.query, key_query, queries)
    fit(module.key, key_query, keys)
    fit(module.value, h, values)


def fit_feed_forward(
    layer: BottleneckLayer, source: StandardLayer, x: Tensor, neuron_inputs: Tensor, wanted: Tensor
) -> Tensor:
    """Fits the feed-forward networks one after another, with the teacher's neurons of the largest contribution.

    x (N, C) is the input of the first network, and `wanted` (N, C) the output of the last. `neuron_inputs` (N, H) are
    the inputs of the teacher's network. Returns the actual output.
    """
    preactivations = source.inner(neuron_inputs)
    order = neuron_contributions(source, source.activation(preactivations)).argsort(descending=True)
    networks = layer.feed_forward
    for number, (inner, outer) in enumerate(networks):
        kept = order[number :: len(networks)][: inner.out_features]
        weight, bias = regress(x, preactivations[:, kept])
        inner.weight[: len(kept)] = weight.T  # further neurons keep their random weights
        inner.bias[: len(kept)] = bias
        neurons = layer.activation(inner(x))
        fit(outer, neurons, wanted - x)
        x = x + outer(neurons)
    return x


def narrow_query_key(query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Narrows a head's queries and keys (N, D) to (N, width), with the nearest scaled products.

    The mean of the keys is subtracted: it shifts all scores by the same amount, which a softmax ignores.
    """
    key = key - key.mean(0)
    q, k = matrix_root(query.T @ query / len(query)), matrix_root(key.T @ key / len(key))
    left, size, right = torch.linalg.svd(q @ k)
    scale = size[:width].sqrt() * (width / query.shape[1]) ** 0.25  # scores are divided by the root of the width
    return query @ inverse(q) @ left[:, :width] * scale, key @ inverse(k) @ right[:width].T * scale


def value_directions(context: Tensor, output: Tensor, width: int) -> Tensor:
    """Returns the directions (D, width) of a head's values with the largest effect on the output weights (H, D).

    `context` (N, D) is the weighted sum of values. Values and output weights share the scale, so that both learn at the
    same rate.
    """
    root = matrix_root(covariance(context))
    _, size, right = torch.linalg.svd(output @ root, full_matrices=False)
    directions: Tensor = inverse(root) @ right[:width].T * size[:width].sqrt()
    return directions


def residual_scale(x: Tensor, hidden: Tensor, wanted: Tensor) -> Tensor:
    """Returns the scale (H,) of `hidden` (N, H) that best explains `wanted` (N, H), beside a linear map of x (N, C)."""

    def remainder(y: Tensor) -> Tensor:
        weight, bias = regress(x, y)
        return y - x @ weight - bias

    ours, theirs = remainder(hidden), remainder(wanted)
    return (ours * theirs).mean(0) / ours.square().mean(0)
