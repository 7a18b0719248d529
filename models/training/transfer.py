"""Giving a student what a BERT teacher knows: a start from its weights, and its features to imitate layer by layer.

The features' loss is MobileBERT's feature-map transfer (Sun et al. 2020, arXiv:2004.02984, section 3.4): the mean
squared error between normalised feature maps, here at every layer at once. The student's stream must be as wide as the
teacher's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.architectures import albert, bert, mobilebert
from models.heads import Model


def cut_vocabulary(teacher: bert.Encoder, kept: Sequence[int]) -> None:
    """Leaves of the teacher's word table the rows `kept`, in that order."""
    rows = teacher.embeddings.word.weight.data[torch.tensor(kept)]
    table = nn.Embedding(len(kept), rows.shape[1])
    table.weight.data = rows
    teacher.embeddings.word = table.requires_grad_(False)


def feature_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], where: Tensor) -> Tensor:
    """The squared error between normalised features (B, S, H) at the tokens `where` (B, S), averaged over layers.

    student and teacher hold the embeddings and then every layer. Each layer of the student imitates the teacher's at
    the same share of the depth.
    """

    def normalise(x: Tensor) -> Tensor:
        return F.layer_norm(x[where], x.shape[-1:])

    depth = len(student) - 1
    twins = [(student[i], teacher[round(i * (len(teacher) - 1) / depth)]) for i in range(1, depth + 1)]
    return torch.stack([F.mse_loss(normalise(s), normalise(t)) for s, t in twins]).mean()


@torch.no_grad()
def start_albert(student: Model, teacher: bert.Encoder, counts: Tensor) -> None:
    """Starts an ALBERT of the teacher's width: its word table is the best factorisation of the teacher's.

    Each group starts as the teacher's layer in the middle of the depth that the group covers. counts (V,) weighs the
    words.
    """
    source, target = teacher.embeddings, student.encoder.embeddings
    assert isinstance(target, albert.Embeddings)  # noqa: S101  # tells the type checker
    basis = principal_directions(source.word.weight, counts, target.word.embedding_dim)  # (H, E)
    mean = source.norm.bias
    target.word.weight.copy_(source.word.weight @ basis)
    target.position.weight.copy_(source.position.weight @ basis)
    target.token_type.weight.copy_(source.token_type.weight @ basis)
    # A normalised row has norm sqrt(width), in E dimensions as in H.
    stretch = (basis.shape[0] / basis.shape[1]) ** 0.5
    target.projection.weight.copy_(source.norm.weight[:, None] * basis * stretch)
    target.projection.bias.copy_(mean)
    assert isinstance(student.encoder, albert.Encoder)  # noqa: S101
    groups = student.encoder.groups
    for number, group in enumerate(groups):
        middle = teacher.layers[int((number + 0.5) * len(teacher.layers) / len(groups))]
        for layer in group.children():
            layer.load_state_dict(middle.state_dict())


@torch.no_grad()
def start_mobilebert(student: Model, teacher: bert.Encoder, counts: Tensor) -> None:
    """Starts a MobileBERT whose stream is as wide as the teacher's: its embeddings give nearly what the teacher's give.

    NoNorm cannot normalise, so the teacher's norm is replaced by its mean effect. counts (V,) weighs the words.
    """
    source, target = teacher.embeddings, student.encoder.embeddings
    assert isinstance(target, mobilebert.Embeddings)  # noqa: S101  # tells the type checker
    assert target.projection is not None  # noqa: S101
    e = target.word.embedding_dim
    basis = principal_directions(source.word.weight, counts, e)  # (H, E)
    typical = source.word.weight + source.position.weight[:128].mean(0) + source.token_type.weight[0]
    weights = counts / counts.sum()
    spread = (typical.std(1) * weights).sum()
    centre = (typical.mean(1) * weights).sum()
    scale = source.norm.weight / spread
    target.word.weight.copy_(source.word.weight @ basis)
    target.projection.weight.zero_()
    target.projection.weight[:, e : 2 * e] = scale[:, None] * basis  # the middle of the trigram
    target.projection.bias.copy_(source.norm.bias - source.norm.weight * centre / spread)
    target.position.weight.copy_(source.position.weight * scale)
    target.token_type.weight.copy_(source.token_type.weight * scale)


def principal_directions(table: Tensor, counts: Tensor, rank: int) -> Tensor:
    """The `rank` directions (H, rank) that keep most of a table (V, H) whose rows weigh as counts (V,) says."""
    weight = (counts + 1).sqrt()[:, None]
    _, _, directions = torch.linalg.svd(table * weight, full_matrices=False)
    basis: Tensor = directions[:rank].T
    return basis
