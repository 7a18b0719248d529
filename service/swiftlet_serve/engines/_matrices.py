"""The matrices and vectors of a network, as the native engine's kernels take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import Precision
from swiftlet_models.folded import Array
from swiftlet_models.tensors import Matrix, blocks, round_to_bf16

PRECISIONS: Final[dict[Precision, int]] = {"int8": 0, "bf16": 1}
"""The numbers in C++ of the precisions that the kernels have."""


Stored = tuple[NDArray[Any], NDArray[np.float32]]


def stored_ahead(matrices: Iterable[Matrix], precision: Precision) -> Iterator[Stored]:
    """Yields `stored` of each matrix, while another thread computes that of the next one."""
    ahead: Future[Stored] | None = None
    with ThreadPoolExecutor(1, "matrix") as thread:
        for matrix in matrices:
            made, ahead = ahead, thread.submit(stored, matrix, precision)
            if made:
                yield made.result()
        if ahead:
            yield ahead.result()


def stored(matrix: Matrix, precision: Precision) -> Stored:
    """Returns a matrix (N, K) in int8 with its scales (N,), or the bits of bf16 numbers without scales, (0,).

    Raises:
        ValueError: a weight is not finite in this precision.
    """
    if precision == "int8":
        return quantise(matrix)
    bits = np.empty(matrix.shape, np.uint16)
    for rows in blocks(matrix):
        bits[rows] = round_to_bf16(matrix[rows])
    return bits, np.empty(0, np.float32)


def quantise(matrix: Matrix) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Returns a matrix (N, K) in int8, and one scale per output, (N,).

    Raises:
        ValueError: a weight is not finite.
    """
    weight, scales = np.empty(matrix.shape, np.int8), np.empty(len(matrix), np.float32)
    for rows in blocks(matrix):
        block = matrix[rows]
        work = np.abs(block)
        largest = work.max(axis=1)
        if not np.isfinite(largest).all():
            raise ValueError("a parameter is not finite.")
        scales[rows] = np.where(largest > np.finfo(np.float32).tiny * 127, largest / 127, 1)
        np.divide(block, scales[rows, None], out=work)
        weight[rows] = np.rint(work, out=work)
    return weight, scales


def finite(array: Array) -> NDArray[np.float32]:
    """Returns an array in fp32. Raises ValueError if a number is not finite."""
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(floats).all():
        raise ValueError("a parameter is not finite.")
    return floats
