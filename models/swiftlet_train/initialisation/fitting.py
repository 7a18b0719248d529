"""Linear algebra for initialising a student: regressions and principal directions.

Shape letters: see `architectures/layers.py`; N counts the rows of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RIDGE: Final = 1e-3
"""The penalty of a regression, relative to the mean square of its inputs. A smaller penalty made some weights of a
bottleneck student ten times as large, along inputs that hardly vary. The student then fitted the teacher no better and
learned tasks more slowly."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Sequences that an initialisation is fitted on."""

    input_ids: Tensor
    """(R, S)"""
    token_type_ids: Tensor
    """(R, S)"""
    is_token: Tensor
    """(R, S), false for padding."""

    @classmethod
    def from_sequences(cls, sequences: Tensor) -> Sample:
        """Makes a sample of sequences (R, S) of one text each, without padding."""
        return cls(sequences, torch.zeros_like(sequences), torch.ones_like(sequences, dtype=torch.bool))


def fit(layer: nn.Linear, inputs: Tensor, outputs: Tensor) -> None:
    """Sets a linear layer to map inputs (..., I) to outputs (..., O) with the least squared error."""
    weight, bias = regress(inputs.flatten(0, -2), outputs.flatten(0, -2))
    layer.weight.copy_(weight.T)
    layer.bias.copy_(bias)


def regress(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weights (I, O) and the bias (O,) of a ridge regression from inputs (N, I) to outputs (N, O).

    The penalty makes the solution unique, because normalised inputs sum to 0.
    """
    x, y = F.pad(inputs, (0, 1), value=1.0).double(), outputs.double()  # one more column, for the bias
    gram = x.T @ x
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    solution = torch.linalg.solve(gram, x.T @ y).to(outputs.dtype)
    return solution[:-1], solution[-1]


def principal_directions(table: Tensor, counts: Tensor, rank: int) -> Tensor:
    """Returns the `rank` directions (H, rank) that preserve most of a table (V, H) with row weights `counts` (V,)."""
    weight = (counts + 1).sqrt()[:, None]
    _, _, directions = torch.linalg.svd(table * weight, full_matrices=False)
    basis: Tensor = directions[:rank].T
    return basis


def common_directions(first: Tensor, second: Tensor, count: int) -> Tensor:
    """Returns the directions (H, count) with most of the variance of both arguments (N, H)."""
    covariances = [covariance(x) for x in (first, second)]
    _, directions = torch.linalg.eigh(sum(matrix / matrix.trace() for matrix in covariances))
    basis: Tensor = directions[:, -count:]
    return basis


def covariance(x: Tensor) -> Tensor:
    """Returns the covariance (D, D) of rows (N, D)."""
    centred = x - x.mean(0)
    return centred.T @ centred / len(x)


def matrix_root(matrix: Tensor) -> Tensor:
    """Returns the square root of a covariance. Small eigenvalues are raised to keep it invertible."""
    sizes, directions = torch.linalg.eigh(matrix)
    root: Tensor = (directions * sizes.clamp(min=1e-4 * float(sizes.max())).sqrt()) @ directions.T
    return root


def inverse(matrix: Tensor) -> Tensor:
    """Returns the inverse of a matrix."""
    inverted: Tensor = torch.linalg.inv(matrix)
    return inverted
