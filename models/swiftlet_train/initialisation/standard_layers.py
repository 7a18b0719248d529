"""Initialises a student with standard layers and factorised embeddings, such as an ALBERT, from a BERT.

The hidden size of both must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swiftlet_models.architectures.layers import ACTIVATIONS, Encoder
from swiftlet_models.architectures.traits import FeedForwardTraits
from swiftlet_models.heads import CausalLM, MaskedLM, Model
from swiftlet_train.initialisation.fitting import Sample, fit, principal_directions


@dataclass(frozen=True, eq=False)
class StandardLayer:
    """A layer without a bottleneck, with one feed-forward network."""

    module: Any
    names: FeedForwardTraits
    activation: Callable[[Tensor], Tensor]

    @property
    def inner(self) -> nn.Linear:
        """The first linear map of the feed-forward network."""
        inner: nn.Linear = self.module.get_submodule(self.names.inner)
        return inner

    @property
    def outer(self) -> nn.Linear:
        """The second linear map of the feed-forward network."""
        outer: nn.Linear = self.module.get_submodule(self.names.outer)
        return outer

    def neurons(self, x: Tensor) -> Tensor:
        """Returns the activations of the feed-forward network, (N, H) to (N, I)."""
        return self.activation(self.inner(x))


def standard_layers(encoder: Encoder) -> list[StandardLayer]:
    """Returns the layers of an encoder in the order of their application."""
    traits = encoder.config.traits()
    (names,) = traits.feed_forward
    activation = ACTIVATIONS[traits.activation]
    return [StandardLayer(layer, names, activation) for layer in encoder.applied_layers()]


@torch.no_grad()
def initialise_factorised(student: Model, teacher: Encoder, counts: Tensor, sample: Sample) -> None:
    """Initialises the embeddings and the layers of a student with factorised embeddings.

    The embeddings are the best approximation of rank E. Each distinct layer starts as the first of the teacher's layers
    that it covers. Its feed-forward network gets as many of the teacher's neurons as fit. `counts` (V,) weighs words.
    """
    _initialise_embeddings(student.encoder.embeddings, teacher.embeddings, counts, sample)
    initialise_layers(student.encoder, teacher, sample)


def initialise_layers(encoder: Encoder, teacher: Encoder, sample: Sample) -> None:
    """Copies the first of the teacher's layers that each distinct layer covers."""
    layers = {id(layer.module): layer for layer in standard_layers(encoder)}
    sources, inputs = standard_layers(teacher), feed_forward_inputs(teacher, sample)
    for number, layer in enumerate(layers.values()):
        first = number * len(sources) // len(layers)
        initialise_layer(layer, sources[first], inputs[first])


def _initialise_embeddings(target: Any, source: Any, counts: Tensor, sample: Sample) -> None:
    # Positions are part of the approximated table: otherwise the layers cannot tell neighbouring tokens apart.
    positions = source.position.weight - source.position.weight.mean(0)
    position_counts = torch.full((len(positions),), float(counts.sum()) / sample.is_token.shape[1])
    table = torch.cat([source.word.weight, positions])
    basis = principal_directions(table, torch.cat([counts, position_counts]), target.word.embedding_dim)  # (H, E)
    target.word.weight.copy_(source.word.weight @ basis)
    target.position.weight.copy_(source.position.weight[: target.position.num_embeddings] @ basis)
    target.token_type.weight.copy_(source.token_type.weight @ basis)
    ids, types = sample.input_ids, sample.token_type_ids
    summed = target.word(ids) + target.token_type(types) + target.position(torch.arange(ids.shape[1]))
    fit(target.projection, target.norm(summed)[sample.is_token], source(ids, types)[sample.is_token])


def feed_forward_inputs(encoder: Encoder, sample: Sample) -> list[Tensor]:
    """Returns the input of every layer's feed-forward network at the N tokens of the sample, (N, H) each."""
    inputs: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:  # noqa: ARG001  # the signature of a hook
        inputs.append(args[0][sample.is_token])

    maps = dict.fromkeys(layer.inner for layer in standard_layers(encoder))  # a shared layer needs one hook only
    hooks = [inner.register_forward_pre_hook(record) for inner in maps]
    encoder(sample.input_ids, sample.token_type_ids, sample.is_token)
    for hook in hooks:
        hook.remove()
    return inputs


def initialise_layer(layer: StandardLayer, source: StandardLayer, inputs: Tensor) -> None:
    """Copies a layer. A smaller feed-forward network gets the neurons with the largest contribution.

    A neuron's contribution is the mean square of its output, over the network's inputs (N, H). The output weights of
    the remaining neurons are fitted again, to compensate for the others.
    """
    size = layer.inner.out_features
    parameters = source.module.state_dict()
    if size < source.inner.out_features:
        neurons = source.neurons(inputs)  # (N, I)
        kept = neuron_contributions(source, neurons).topk(size).indices.sort().values
        fit(layer.outer, neurons[:, kept], source.outer(neurons))
        names = source.names
        parameters |= {f"{names.outer}.{name}": value for name, value in layer.outer.state_dict().items()}
        parameters |= {f"{names.inner}.{name}": value[kept] for name, value in source.inner.state_dict().items()}
    new_names = dict(zip(astuple(source.names), astuple(layer.names), strict=True))  # of another architecture
    for name in list(parameters):
        module, _, kind = name.rpartition(".")
        parameters[f"{new_names.get(module, module)}.{kind}"] = parameters.pop(name)
    layer.module.load_state_dict(parameters)


def neuron_contributions(layer: StandardLayer, neurons: Tensor) -> Tensor:
    """Returns the mean square of each neuron's output, (I,), for activations (N, I)."""
    return neurons.square().mean(0) * layer.outer.weight.square().sum(0)


@torch.no_grad()
def initialise_masked_lm_head(head: MaskedLM, counts: Tensor) -> None:
    """Initialises a masked-LM head with the words' frequencies, and reduces the influence of its input."""
    initialise_bias(head, counts)
    head.norm.weight.fill_(0.25)


@torch.no_grad()
def initialise_bias(head: MaskedLM | CausalLM, counts: Tensor) -> None:
    """Initialises the bias of a head that predicts words with the words' frequencies."""
    head.bias.copy_(torch.log((counts + 1) / (counts + 1).sum()))
