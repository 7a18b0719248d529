"""The start that a student takes from a BERT teacher: its words, its positions and some of its layers.

The student's stream must be as wide as the teacher's. How a MobileBERT starts stands in `start_mobilebert`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_serve.models.architectures import albert, bert
from swiftlet_serve.models.heads import MaskedLM, Model

RIDGE: Final = 1e-3
"""Of a regression, relative to the mean square of its inputs. With less, weights of a MobileBERT's start grew ten times
as large, where inputs hardly vary, and it learnt tasks as slowly; what it computed was as near to the teacher."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Texts that a start is fitted on."""

    input_ids: Tensor  # (R, S)
    token_type_ids: Tensor  # (R, S)
    mask: Tensor  # (R, S), true on real tokens

    @classmethod
    def of(cls, rows: Tensor) -> Sample:
        """Rows (R, S) of one text each, without padding."""
        return cls(rows, torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool))


def cut_vocabulary(teacher: bert.Encoder, kept: Sequence[int]) -> None:
    """Leaves of the teacher's word table the rows `kept`, in that order."""
    rows = teacher.embeddings.word.weight.data[torch.tensor(kept)]
    table = nn.Embedding(len(kept), rows.shape[1])
    table.weight.data = rows
    teacher.embeddings.word = table.requires_grad_(False)


@torch.no_grad()
def start_albert(student: Model, teacher: bert.Encoder, counts: Tensor, sample: Sample) -> None:
    """Starts an ALBERT of the teacher's width with the teacher's embeddings, as near as E dimensions come, and layers.

    Each group starts as the first of the teacher's layers that it covers, of whose feed-forward network it takes as
    many neurons as it has room for. counts (V,) weighs the words.
    """
    source, target = teacher.embeddings, student.encoder.embeddings
    assert isinstance(target, albert.Embeddings)  # noqa: S101  # tells the type checker
    assert isinstance(student.encoder, albert.Encoder)  # noqa: S101  # the same
    # A token is a word at a position: without directions for the positions too, the layers cannot tell neighbours.
    positions = source.position.weight - source.position.weight.mean(0)
    often = torch.full((len(positions),), float(counts.sum()) / sample.mask.shape[1])
    table = torch.cat([source.word.weight, positions])
    basis = principal_directions(table, torch.cat([counts, often]), target.word.embedding_dim)  # (H, E)
    target.word.weight.copy_(source.word.weight @ basis)
    target.position.weight.copy_(source.position.weight[: target.position.num_embeddings] @ basis)
    target.token_type.weight.copy_(source.token_type.weight @ basis)
    read, real = (sample.input_ids, sample.token_type_ids), sample.mask
    fit(target.projection, target.narrow(*read)[real], source(*read)[real])
    groups, widened = student.encoder.groups, enter_feed_forward(teacher, sample)
    for number, group in enumerate(groups):
        first = number * len(teacher.layers) // len(groups)
        for layer in group.children():
            taken = teacher.layers[first]
            assert isinstance(layer, albert.Layer)  # noqa: S101  # tells the type checker
            assert isinstance(taken, bert.Layer)  # noqa: S101  # the same
            start_layer(layer, taken, widened[first])


def enter_feed_forward(teacher: bert.Encoder, sample: Sample) -> list[Tensor]:
    """What enters the feed-forward network of every layer, (N, H) each, at the sample's N real tokens."""
    found: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # noqa: ARG001  # a hook's shape
        found.append(inputs[0][sample.mask])

    hooks = [part.register_forward_pre_hook(keep) for name, part in teacher.named_modules() if name.endswith(".ffn_in")]
    teacher(sample.input_ids, sample.token_type_ids, sample.mask)
    for hook in hooks:
        hook.remove()
    return found


def start_layer(layer: albert.Layer, source: bert.Layer, entering: Tensor) -> None:
    """Starts a layer as the source, in its feed-forward network with the neurons that say most.

    How much a neuron says is the mean square of what it adds, over what enters that network, (N, H). What those left
    out said is made up for as well as the others can: their output weights are fitted anew.
    """
    room, wide = layer.ffn_in.out_features, source.ffn_in.out_features
    parts = source.state_dict()
    if room < wide:
        neurons = source.act(source.ffn_in(entering))  # (N, I)
        said = neurons.square().mean(0) * source.ffn_out.weight.square().sum(0)
        kept = said.topk(room).indices.sort().values
        fit(layer.ffn_out, neurons[:, kept], source.ffn_out(neurons))
        parts |= {f"ffn_out.{name}": value for name, value in layer.ffn_out.state_dict().items()}
        parts |= {f"ffn_in.{name}": value[kept] for name, value in source.ffn_in.state_dict().items()}
    layer.load_state_dict(parts)


@torch.no_grad()
def start_head(head: MaskedLM, counts: Tensor) -> None:
    """Starts a masked-LM head with how often each word occurs, and with little said beyond that."""
    head.bias.copy_(torch.log((counts + 1) / (counts + 1).sum()))
    head.norm.weight.fill_(0.25)


def fit(layer: nn.Linear, inputs: Tensor, outputs: Tensor) -> None:
    """Gives a linear layer the weights that map inputs (..., I) to outputs (..., O) with the least error."""
    weight, bias = regress(inputs.flatten(0, -2), outputs.flatten(0, -2))
    layer.weight.copy_(weight.T)
    layer.bias.copy_(bias)


def regress(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The weights (I, O) and the bias (O,) that give outputs (N, O) from inputs (N, I) with the least squared error.

    A little of a penalty on the weights (ridge regression) chooses among equally good ones: normalised inputs sum to 0.
    """
    x, y = F.pad(inputs, (0, 1), value=1.0).double(), outputs.double()  # one more column, for the bias
    gram = x.T @ x
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    solution = torch.linalg.solve(gram, x.T @ y).to(outputs.dtype)
    return solution[:-1], solution[-1]


def principal_directions(table: Tensor, counts: Tensor, rank: int) -> Tensor:
    """The `rank` directions (H, rank) that keep most of a table (V, H) whose rows weigh as counts (V,) says."""
    weight = (counts + 1).sqrt()[:, None]
    _, _, directions = torch.linalg.svd(table * weight, full_matrices=False)
    basis: Tensor = directions[:rank].T
    return basis
