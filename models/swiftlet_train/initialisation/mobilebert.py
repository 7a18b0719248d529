"""Initialises a MobileBERT from a BERT or an ALBERT: its embeddings of trigrams, its layers and its masked-LM head.

The layers are copied if the student has neither bottlenecks nor NoNorm, and fitted if it has both.

Shape letters: see `architectures/layers.py`; N counts the tokens of the sample (R, S).
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_models.architectures.layers import Encoder
from swiftlet_models.heads import MaskedLM, Model
from swiftlet_train.initialisation.bottleneck_layers import can_fit_layers, fit_layers
from swiftlet_train.initialisation.fitting import Sample, fit, principal_directions, regress
from swiftlet_train.initialisation.standard_layers import initialise_layers, standard_layers

HEAD_ITERATIONS: Final = 3  # alternating fits of the two parts of the masked-LM head
CONSTANT_SIZE: Final = 2.0  # of the constant before a LayerNorm, relative to the root mean square of its inputs


@torch.no_grad()
def initialise_mobilebert(student: Model, teacher: Encoder, counts: Tensor, sample: Sample) -> None:
    """Initialises a student's embeddings, and its layers if they can be copied from the teacher's or fitted to them.

    The hidden size must be the teacher's. `counts` (V,) weighs the words. Factorised word embeddings of the teacher are
    copied, and must be as wide as the student's.
    """
    encoder = student.encoder
    features = teacher.features(sample.input_ids, sample.token_type_ids, sample.is_token)
    initialise_embeddings(encoder.embeddings, teacher, counts, sample, features[0])
    if can_copy_layers(encoder, teacher):
        initialise_layers(encoder, teacher, sample)
    elif can_fit_layers(encoder, teacher):
        fit_layers(encoder, teacher, features, sample)


def can_copy_layers(encoder: Encoder, teacher: Encoder) -> bool:
    """Returns whether the student's layers can be copied from the teacher's.

    The student needs LayerNorm, no bottlenecks, one feed-forward network in a layer, as many heads as the teacher, and
    no more neurons.
    """
    traits, others = encoder.config.traits(), teacher.config.traits()
    if traits.bottleneck is not None or traits.norm != "layer_norm" or len(traits.feed_forward) != 1:
        return False
    neurons = [standard_layers(model)[0].inner.out_features for model in (encoder, teacher)]
    return traits.heads == others.heads and neurons[0] <= neurons[1]


def initialise_embeddings(target: Any, teacher: Encoder, counts: Tensor, sample: Sample, features: Tensor) -> None:
    """Fits the embeddings to the teacher's, which are `features` (R, S, H).

    The student has no norm where the teacher has one, so the mean effect of the teacher's norm replaces that norm.
    """
    source: Any = teacher.embeddings
    positions = slice(sample.is_token.shape[1])
    typical = source.word.weight + source.position.weight[positions].mean(0) + source.token_type.weight[0]
    scale = source.norm.weight / (typical.std(1) * counts / counts.sum()).sum()
    position = source.position.weight[: target.position.num_embeddings] * scale
    token_type = source.token_type.weight * scale
    if teacher.config.traits().embedding.projection == "sum":
        target.word.weight.copy_(source.word.weight)
        position, token_type = (table @ source.projection.weight.T for table in (position, token_type))
    else:
        basis = principal_directions(source.word.weight, counts, target.word.embedding_dim)  # (H, E)
        target.word.weight.copy_(source.word.weight @ basis)
    target.position.weight[: len(position)] = position
    target.token_type.weight.copy_(token_type)
    words = concatenate_trigrams(target.word(sample.input_ids) * sample.is_token[:, :, None])
    added = target.position.weight[positions] + target.token_type(sample.token_type_ids)
    fit(target.projection, words[sample.is_token], (features - added)[sample.is_token])
    if isinstance(target.norm, nn.LayerNorm):
        # A large constant keeps the size of the sums nearly constant. The norm is then nearly linear, as a NoNorm is.
        sums = (target.projection(words) + added)[sample.is_token]
        signs = 1.0 - 2.0 * (torch.arange(sums.shape[1]) % 2)
        target.projection.bias.add_(signs * CONSTANT_SIZE * sums.square().mean().sqrt())
        fit_norm(target.norm, (target.projection(words) + added)[sample.is_token], features[sample.is_token])


def fit_norm(norm: nn.LayerNorm, x: Tensor, wanted: Tensor) -> None:
    """Sets the scale and the shift of a norm so that its output for x (N, D) is nearest to `wanted` (N, D)."""
    normalised = F.layer_norm(x, x.shape[1:], eps=norm.eps)
    mean, wanted_mean = normalised.mean(0), wanted.mean(0)
    scale = ((normalised - mean) * (wanted - wanted_mean)).mean(0) / (normalised - mean).square().mean(0)
    norm.weight.copy_(scale)
    norm.bias.copy_(wanted_mean - scale * mean)


def concatenate_trigrams(x: Tensor) -> Tensor:
    """Concatenates the embeddings of the next token, the token and the previous one, (B, S, E) to (B, S, 3E)."""
    following, preceding = F.pad(x[:, 1:], (0, 0, 0, 1)), F.pad(x[:, :-1], (0, 0, 1, 0))
    return torch.cat([following, x, preceding], dim=2)


@torch.no_grad()
def initialise_wide_head(
    head: MaskedLM, source: MaskedLM, words: Tensor, inputs: Tensor, source_inputs: Tensor
) -> None:
    """Initialises a masked-LM head that is wider than the word embeddings (V, E), which it shares with the teacher.

    inputs and source_inputs (N, H) are the inputs of the student's and of the teacher's head for the same tokens. The
    first E dimensions reproduce the teacher's. The other ones correct the difference between ReLU and GELU: they read
    the negative halves and the large values of the same directions.
    """
    assert head.extra is not None  # noqa: S101  # for the type checker
    width = words.shape[1]
    transformed = source.transform(source_inputs)  # (N, E)
    weight, bias = regress(inputs, transformed)
    parts = [(weight, bias), (-weight, -bias), (weight, bias - transformed.std(0))]
    for number in range(head.transform.out_features // width):
        rows = slice(number * width, (number + 1) * width)
        head.transform.weight[rows] = parts[number % len(parts)][0].T
        head.transform.bias[rows] = parts[number % len(parts)][1]
    wanted, computed = source.norm(source.act(transformed)), head.norm(head.act(head.transform(inputs)))
    own, rest = computed[:, :width], computed[:, width:]
    correction = torch.zeros_like(wanted)
    for _ in range(HEAD_ITERATIONS):  # each part is fitted to the residual of the other
        scale = ((wanted - correction) * own).mean(0) / own.square().mean(0)
        weight, bias = regress(rest, wanted - own * scale)
        correction = rest @ weight + bias
    head.norm.weight[:width] = scale
    head.norm.bias[:width] = bias
    head.extra.copy_(words @ weight.T)
    head.bias.copy_(source.bias)
