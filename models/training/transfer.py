"""What a student learns from a teacher beside the words: feature maps, attention and predictions.

MobileBERT's knowledge transfer (Sun et al. 2020, arXiv:2004.02984, sections 3.4 to 3.6). The student's stream must be
as wide as the teacher's; to imitate attention both need the same number of heads.
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

from swiftlet_serve.models.architectures import albert, bert, mobilebert
from swiftlet_serve.models.architectures.layers import Encoder, padding_bias
from swiftlet_serve.models.training.recipe import Transfer

Layer = albert.Layer | bert.Layer | mobilebert.Layer


@dataclass(frozen=True)
class Phase:
    """What a stretch of a pre-training minimises."""

    imitated: range  # layers, from 1, whose features and attention follow the teacher's
    below: int  # layers, after the embeddings, that come before the one that learns now; 0 if all learn
    predicts: bool  # whether the words, too, are learnt


def phase(plan: Transfer | None, progress: float, depth: int) -> Phase:
    """What is minimised at `progress`, from 0 to 1, of a pre-training of a student of `depth` layers (section 3.6).

    "auxiliary" imitates and predicts all the time. The others imitate for the plan's `share` of the time and predict
    for the rest of it: "joint" all layers at once, "progressive" one layer after another, those below it at the plan's
    share of the rate, or not at all.
    Without a plan words are predicted, and nothing is imitated.
    """
    if plan is None:
        return Phase(range(0), 0, predicts=True)
    if plan.strategy == "auxiliary":
        return Phase(range(1, depth + 1), 0, predicts=True)
    if progress >= plan.share:
        return Phase(range(0), 0, predicts=True)
    if plan.strategy == "joint":
        return Phase(range(1, depth + 1), 0, predicts=False)
    layer = 1 + int(progress / plan.share * depth)
    return Phase(range(layer, layer + 1), layer - 1, predicts=False)


def layers(encoder: Encoder) -> list[Layer]:
    """The layers in the order they are applied; a shared one comes up again and again."""
    assert isinstance(encoder, albert.Encoder | bert.Encoder | mobilebert.Encoder)  # noqa: S101  # there are no others
    return [layer for layer in encoder.applied_layers() if isinstance(layer, Layer)]


def below(encoder: Encoder, count: int) -> list[nn.Module]:
    """The embeddings and the first `count` layers; nothing where that is none."""
    return [encoder.embeddings, *layers(encoder)[:count]] if count else []


def freeze(encoder: Encoder, count: int) -> None:
    """Leaves the embeddings and the first `count` layers as they are, unless that is none; all others are trained."""
    encoder.requires_grad_(requires_grad=True)
    for part in below(encoder, count):
        part.requires_grad_(requires_grad=False)


def twin(layer: int, depth: int, teacher_depth: int) -> int:
    """The teacher's layer that a student's imitates, at its share of the depth; layer 0 are the embeddings."""
    return round(layer * teacher_depth / depth)


def feature_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], where: Tensor, layers: range) -> Tensor:
    """The squared error between normalised features (B, S, H) at the tokens `where` (B, S), averaged over `layers`.

    student and teacher hold the embeddings and then every layer.
    """

    def normalise(x: Tensor) -> Tensor:
        return F.layer_norm(x[where], x.shape[-1:])

    twins = [(student[i], teacher[twin(i, len(student) - 1, len(teacher) - 1)]) for i in layers]
    return torch.stack([F.mse_loss(normalise(s), normalise(t)) for s, t in twins]).mean()


def moment_losses(
    student: Sequence[Tensor], teacher: Sequence[Tensor], where: Tensor, layers: range
) -> tuple[Tensor, Tensor]:
    """The squared error between the features' means, and the absolute one between their variances, as `feature_loss`.

    A normalised feature map says nothing of either, and a student without norms has to come by both. The paper leaves
    them to its code (google-research, mobilebert/run_pretraining.py).
    """
    twins = [(student[i][where], teacher[twin(i, len(student) - 1, len(teacher) - 1)][where]) for i in layers]
    means = torch.stack([F.mse_loss(s.mean(-1), t.mean(-1)) for s, t in twins]).mean()
    variances = [F.l1_loss(s.var(-1, correction=0), t.var(-1, correction=0)) for s, t in twins]
    return means, torch.stack(variances).mean()


def attention_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], where: Tensor, layers: range) -> Tensor:
    """The KL divergence of the student's attention from the teacher's, averaged over heads, tokens and `layers`.

    student and teacher hold the log-probabilities (B, A, S, S) of every layer, from 1; `where` (B, S) are the tokens
    that look.
    """

    def looking(x: Tensor) -> Tensor:
        return x.transpose(1, 2)[where]  # (N, A, S)

    twins = [(student[i - 1], teacher[twin(i, len(student), len(teacher)) - 1]) for i in layers]
    losses = [F.kl_div(looking(s), looking(t), reduction="none", log_target=True).sum(-1).mean() for s, t in twins]
    return torch.stack(losses).mean()


def prediction_loss(student: Tensor, teacher: Tensor | None, targets: Tensor, hard: float) -> Tensor:
    """The cross entropy of words' logits (N, V) with `hard` parts of what was there (N,) and 1 - hard of the teacher's.

    The pre-training distillation of section 3.5; without a teacher's logits, masked language modelling as it is.
    """
    known = F.cross_entropy(student, targets)
    return known if teacher is None else hard * known + (1 - hard) * F.cross_entropy(student, teacher.softmax(-1))


@contextmanager
def attentions(encoder: Encoder, mask: Tensor) -> Iterator[list[Tensor]]:
    """Collects the log-probabilities (B, A, S, S) of attention of every layer that the encoder applies meanwhile.

    mask (B, S) is true on real tokens. The network's own files stay free of what only training asks for.
    """
    found: list[Tensor] = []
    bias = padding_bias(mask, torch.float32)
    hooks: list[RemovableHandle] = []

    def watch(layer: Layer) -> None:
        query: list[Tensor] = []

        def heads(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], layer.heads, -1).transpose(1, 2)  # (B, A, S, D)

        def keep(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:  # noqa: ARG001  # a hook's shape
            query[:] = [heads(out)]

        def compare(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:  # noqa: ARG001  # the same
            scores = query.pop() @ heads(out).transpose(2, 3) / math.sqrt(out.shape[-1] / layer.heads)
            found.append(F.log_softmax(scores + bias, -1))

        hooks.append(layer.query.register_forward_hook(keep))
        hooks.append(layer.key.register_forward_hook(compare))  # every architecture asks for the query first

    for layer in set(layers(encoder)):
        watch(layer)
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
