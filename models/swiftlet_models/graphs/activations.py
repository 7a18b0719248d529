"""Fixed ranges of activations: 8 bits without a scale for each token, where this is nearly as exact.

A file has the ranges of some products of a folded network, with the names of `program.joined`, as safetensors. For the
inputs x (T, K) of a product NAME it holds

    NAME.divisor (K,)       what each column is divided by, so that columns of different sizes share a range
    NAME.bounds (2,)        the smallest and the largest x / divisor; zero is between them

Other products have a scale for each token, as in an artifact without the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.folded import Folded
from swiftlet_models.program import Multiply, joined
from swiftlet_models.tensors import Weights, WeightsError, pack, unpack

LOSS: Final = 1.5  # times the error of a scale for each token that a fixed range may make
BALANCE: Final = 0.7  # how far divisors follow the inputs' columns: 1 makes them equally large, 0 the weights' columns
LEVELS: Final = 255

Floats = NDArray[np.float32]


class Range(NamedTuple):
    """How the inputs of a product are quantised."""

    divisor: Floats  # (K,)
    bounds: Floats  # (2,), lowest and highest

    @property
    def step(self) -> np.float32:
        return np.float32((self.bounds[1] - self.bounds[0]) / LEVELS)

    @property
    def zero(self) -> np.uint8:
        """The stored value of 0."""
        return np.uint8(np.clip(np.rint(-self.bounds[0] / self.step), 0, LEVELS))

    def rounded(self, x: Floats) -> Floats:
        """Returns x / divisor with the precision of 8 bits."""
        zero = float(self.zero)
        steps: Floats = np.clip(np.rint(x / self.divisor / self.step) + zero, 0, LEVELS) - zero
        return steps * self.step


class Seen(NamedTuple):
    """The inputs of a product in typical texts."""

    low: Floats  # (K,), the smallest number of each column
    high: Floats  # (K,)
    sample: Floats  # (n, K), some of the rows

    @classmethod
    def of(cls, x: Floats, rows: int) -> Self:
        """Returns what there is to see in inputs, with a sample of at most `rows` rows."""
        apart = -(-len(x) // rows)
        return cls(x.min(0), x.max(0), x[apart // 2 :: apart])

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        lows, highs, samples = zip(*parts, strict=True)
        return cls(np.min(lows, 0), np.max(highs, 0), np.concatenate(samples))

    def within(self, divisor: Floats) -> Range:
        bounds = min(0, (self.low / divisor).min()), max(np.finfo(np.float32).tiny, (self.high / divisor).max())
        return Range(divisor, np.array(bounds, np.float32))


def choose(seen: Seen, weight: Floats) -> Range | None:
    """Returns the range for a product with the weights (N, K), or None if it needs a scale for each token.

    Columns are divided only if the error is too large without. `onnx_cpu` then runs one node more.
    """
    exact = seen.sample @ weight.T
    lengths = np.linalg.norm(exact, axis=1, keepdims=True) + np.finfo(np.float32).tiny

    def error(x: Floats, weight: Floats) -> float:
        """Returns the error of the outputs of rounded inputs and weights, relative to each row."""
        return float(np.linalg.norm((x @ unpack(*pack(weight, weight.shape[1])).T - exact) / lengths))

    size = np.maximum(np.abs(seen.low), np.abs(seen.high))
    largest = np.abs(seen.sample).max(1, keepdims=True)
    step = largest / (LEVELS if seen.low.min() >= 0 else LEVELS // 2) + np.finfo(np.float32).tiny
    most = LOSS * error(np.rint(seen.sample / step) * step, weight)
    used = size > 0
    divisor = np.ones_like(size)
    divisor[used] = size[used] ** BALANCE / np.maximum(np.abs(weight).max(0)[used], 1e-9) ** (1 - BALANCE)
    for candidate in (np.ones_like(size), divisor):
        found = seen.within(candidate.astype(np.float32))
        if error(found.rounded(seen.sample), weight * found.divisor) <= most:
            return found
    return None


def to_arrays(ranges: Mapping[str, Range]) -> dict[str, Floats]:
    """Returns the arrays of a file, by name."""
    return {f"{name}.{part}": array for name, fixed in ranges.items() for part, array in fixed._asdict().items()}


def from_arrays(arrays: Weights, folded: Folded) -> dict[str, Range]:
    """Returns the ranges of a network's products.

    Raises:
        WeightsError: the arrays are damaged, or belong to another network.
    """
    products = {step.product for step in joined(folded.program) if isinstance(step, Multiply) and not step.exact}
    names = {name.rpartition(".")[0] for name in arrays}
    if not names <= products or arrays.keys() != {f"{name}.{part}" for name in names for part in Range._fields}:
        raise WeightsError("the ranges of activations are those of other products.")
    ranges = {name: Range(*(np.asarray(arrays[f"{name}.{part}"]) for part in Range._fields)) for name in names}
    for name, (divisor, bounds) in ranges.items():
        columns = folded.product(name).matrix.shape[1:]
        if (
            divisor.shape != columns
            or bounds.shape != (2,)
            or not (divisor > 0).all()
            or not bounds[0] <= 0 < bounds[1]
        ):
            raise WeightsError(f"the range of activations of {name} is invalid.")
    return ranges
