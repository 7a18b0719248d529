"""Knowledge transfer from a teacher to a student: features, attention and predictions.

As in MobileBERT's training (Sun et al. 2020, arXiv:2004.02984, sections 3.4 to 3.6). Feature transfer needs the same
hidden size in both networks, and attention transfer the same number of heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from swiftlet_models.architectures.layers import Encoder, Layer, padding_bias
from swiftlet_train.recipe import KnowledgeTransfer
from swiftlet_train.teachers.depth import teacher_layer


@dataclass(frozen=True)
class Phase:
    """The objectives at one point of a pre-training."""

    layers: range
    """The layers, counted from 1, whose features and attention follow the teacher's."""
    lower_layers: int
    """The number of layers below the one in training; 0 if all layers are trained."""
    predicts_words: bool


def find_phase(plan: KnowledgeTransfer | None, progress: float, depth: int) -> Phase:
    """Returns the phase at `progress`, from 0 to 1, for a student of `depth` layers (section 3.6).

    - `auxiliary` transfers and predicts words throughout.
    - `joint` transfers all layers at once, and then predicts words.
    - `progressive` transfers one layer after another, and then predicts words.

    Without a plan the student predicts words throughout.
    """
    if plan is None:
        return Phase(range(0), 0, predicts_words=True)
    if plan.strategy == "auxiliary":
        return Phase(range(1, depth + 1), 0, predicts_words=True)
    if progress >= plan.transfer_fraction:
        return Phase(range(0), 0, predicts_words=True)
    if plan.strategy == "joint":
        return Phase(range(1, depth + 1), 0, predicts_words=False)
    layer = 1 + int(progress / plan.transfer_fraction * depth)
    return Phase(range(layer, layer + 1), layer - 1, predicts_words=False)


def lower_modules(encoder: Encoder, count: int) -> list[nn.Module]:
    """Returns the embeddings and the first `count` layers, or nothing if `count` is 0."""
    return [encoder.embeddings, *encoder.applied_layers()[:count]] if count else []


def freeze_lower_modules(encoder: Encoder, count: int) -> None:
    """Freezes the embeddings and the first `count` layers, or nothing if `count` is 0. Unfreezes all others."""
    encoder.requires_grad_(requires_grad=True)
    for module in lower_modules(encoder, count):
        module.requires_grad_(requires_grad=False)


def feature_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], where: Tensor, layers: range) -> Tensor:
    """Returns the squared error between normalised features, averaged over the tokens `where` (B, S) and the layers.

    student and teacher hold the features (B, S, H) of the embeddings and of every layer.
    """

    def normalise(x: Tensor) -> Tensor:
        return F.layer_norm(x[where], x.shape[-1:])

    pairs = [(student[i], teacher[teacher_layer(i, len(student) - 1, len(teacher) - 1)]) for i in layers]
    return torch.stack([F.mse_loss(normalise(s), normalise(t)) for s, t in pairs]).mean()


def moment_losses(
    student: Sequence[Tensor], teacher: Sequence[Tensor], where: Tensor, layers: range
) -> tuple[Tensor, Tensor]:
    """Returns the squared error of the features' means and the absolute error of their variances.

    Takes the arguments of `feature_loss`, whose normalised features hide both. A student without norms needs them. They
    are not in the paper but in its code (google-research, mobilebert/run_pretraining.py).
    """
    depth, teacher_depth = len(student) - 1, len(teacher) - 1
    pairs = [(student[i][where], teacher[teacher_layer(i, depth, teacher_depth)][where]) for i in layers]
    means = torch.stack([F.mse_loss(s.mean(-1), t.mean(-1)) for s, t in pairs]).mean()
    variances = [F.l1_loss(s.var(-1, correction=0), t.var(-1, correction=0)) for s, t in pairs]
    return means, torch.stack(variances).mean()


def attention_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], where: Tensor, layers: range) -> Tensor:
    """Returns the KL divergence of the student's attention, averaged over heads, query tokens and layers.

    student and teacher hold the log-probabilities (B, A, S, S) of every layer. `where` (B, S) are the query tokens.
    """

    def select(x: Tensor) -> Tensor:
        return x.transpose(1, 2)[where]  # (N, A, S)

    pairs = [(student[i - 1], teacher[teacher_layer(i, len(student), len(teacher)) - 1]) for i in layers]
    losses = [F.kl_div(select(s), select(t), reduction="none", log_target=True).sum(-1).mean() for s, t in pairs]
    return torch.stack(losses).mean()


def prediction_loss(logits: Tensor, teacher: Tensor | None, targets: Tensor, hard_label_weight: float) -> Tensor:
    """Returns the cross entropy of word predictions (N, V), with the weighted mean of targets and teacher as target.

    This is the pre-training distillation of section 3.5. Without a teacher's logits it is masked language modelling.
    """
    hard = F.cross_entropy(logits, targets)
    if teacher is None:
        return hard
    return hard_label_weight * hard + (1 - hard_label_weight) * F.cross_entropy(logits, teacher.softmax(-1))


@contextmanager
def record_attention(encoder: Encoder, is_token: Tensor) -> Iterator[list[Tensor]]:
    """Records the attention log-probabilities (B, A, S, S) of every layer application inside the context.

    `is_token` (B, S) is false for padding. Uses hooks, because only training needs the attention.
    """
    recorded: list[Tensor] = []
    bias = padding_bias(is_token, torch.float32)
    hooks: list[RemovableHandle] = []

    def add_hooks(layer: Layer) -> None:
        query: list[Tensor] = []

        def split_heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], layer.heads, -1).transpose(1, 2)  # (B, A, S, D)

        def keep_query(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:  # noqa: ARG001  # a hook
            query[:] = [split_heads(out)]

        def record_scores(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:  # noqa: ARG001  # a hook
            scores = query.pop() @ split_heads(out).transpose(2, 3) / math.sqrt(out.shape[-1] / layer.heads)
            recorded.append(F.log_softmax(scores + bias, -1))

        hooks.append(layer.query.register_forward_hook(keep_query))
        hooks.append(layer.key.register_forward_hook(record_scores))  # every architecture computes the query first

    for layer in {layer.query: layer for layer in encoder.applied_layers()}.values():  # layers may share an attention
        add_hooks(layer)
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()
