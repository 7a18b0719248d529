"""A network as the native kernels read it: its program as numbers, its parameters in order, and its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.folded import Array, Folded, FoldingError, Product
from swiftlet_models.program import (
    GIVEN,
    WORDS,
    Attend,
    Gate,
    LookUp,
    Multiply,
    Norm,
    NormHeads,
    Place,
    Read,
    Relative,
    Rotate,
    Step,
)
from swiftlet_models.tensors import Adapted, Floats, Matrix

# Numbers in C++.
ACTIVATIONS: Final = {None: 0, "relu": 1, "gelu": 2, "gelu_new": 3, "gelu_pytorch_tanh": 3, "tanh": 4, "silu": 5}
INDICES: Final = {"word": 0, "next_word": 1, "previous_word": 2, "position": 3, "token_type": 4, "given": 5}
HOW: Final = {"focus": 0, "mean": 1, "max": 2}
NONE: Final = -1
STEP_NUMBERS: Final = 17
MOST_DISTANCES: Final = 512  # rows of a table of distances


class Parameters(NamedTuple):
    """The parameters of a network by name, with the numbers that C++ gives them."""

    products: dict[str, int]
    vectors: dict[str, Array]  # in the order of their numbers
    words_in: str | None  # the product that holds the word table as well

    @classmethod
    def of(cls, folded: Folded) -> Parameters:
        """Lists the parameters. Exact products are vectors."""
        exact = {step.product for step in folded.program if isinstance(step, Multiply) and step.exact}
        products = {name: i for i, name in enumerate(name for name in folded.products if name not in exact)}
        vectors = dict(folded.vectors)
        for name in exact:
            vectors |= {name: folded.products[name].weight, name + ".bias": folded.products[name].bias}
        shared = (name for name in products if folded.products[name].matrix is folded.words)
        return cls(products, vectors, next(shared, None))


Adapter = Mapping[str, tuple[Floats, Floats]]
"""What an adapter adds to products, by their names: the matrices A (R, K) and B (N, R) of B A x."""


def without_adapter(folded: Folded) -> tuple[Folded, Adapter]:
    """Returns a network without its adapter, and the adapter. Exact products stay as they are."""
    exact = {step.product for step in folded.program if isinstance(step, Multiply) and step.exact}
    products, adapter = dict(folded.products), dict[str, tuple[Floats, Floats]]()
    for name, product in folded.products.items():
        if isinstance(matrix := product.matrix, Adapted) and name not in exact:
            products[name] = Product(matrix.base, product.bias)
            adapter[name] = np.asarray(matrix.a, np.float32), np.asarray(matrix.b, np.float32)
    return replace(folded, products=products), adapter


def listed_matrices(folded: Folded, parameters: Parameters) -> tuple[list[Product], list[Matrix]]:
    """Returns the products, and the table of words unless it lies in one of them."""
    words = [folded.words] if folded.words is not None and parameters.words_in is None else []
    return [folded.products[name] for name in parameters.products], words


def program_numbers(folded: Folded, parameters: Parameters) -> NDArray[np.int32]:
    """Returns a network's program as numbers, which `native/program.h` reads.

    Raises:
        FoldingError: the kernels do not have one of its activations, or not so many distances.
    """
    program = folded.program
    values = {value: i for i, value in enumerate(program.widths)}
    vectors = {name: i for i, name in enumerate(parameters.vectors)}

    def place(at: Place | None) -> tuple[int, int]:
        return (values[at.value], at.first) if at else (NONE, 0)

    def vector(name: str | None) -> int:
        return vectors[name] if name else NONE

    def distances(relative: Relative | None) -> tuple[int, int, int]:
        if relative is None:
            return NONE, NONE, NONE
        for name in filter(None, (relative.keys, relative.queries)):
            if (count := len(folded.vectors[name])) > MOST_DISTANCES:
                raise FoldingError(f"its table of distances has {count} rows, more than {MOST_DISTANCES}")
        return vector(relative.rows), vector(relative.keys), vector(relative.queries)

    def activation(name: str | None) -> int:
        if name not in ACTIVATIONS:
            raise FoldingError(f"the activation {name!r} is not supported")
        return ACTIVATIONS[name]

    def epsilon(number: float) -> int:
        return int(np.float32(number).view(np.int32))

    def numbers(step: Step) -> tuple[int, ...]:
        """The kind of a step, its output, and the numbers of its kind."""
        match step:
            case LookUp():
                table = (0, 0) if step.table in (WORDS, GIVEN) else (1, vectors[step.table])
                return 0, values[step.out.value], step.out.first, step.out.width, *table, INDICES[step.index], step.adds
            case Multiply():
                bias = vectors[step.product + ".bias"] if step.exact else NONE
                product = vectors[step.product] if step.exact else parameters.products[step.product]
                after = *place(step.residual), vector(step.gain), activation(step.activation)
                return 1, values[step.out], values[step.x], product, bias, *after
            case Norm():
                norm = vectors[step.norm + ".weight"], vectors[step.norm + ".bias"] if step.centres else NONE
                return 2, values[step.out], values[step.x], *norm, epsilon(step.epsilon), *place(step.residual)
            case Attend():
                places = *place(step.query), *place(step.key), *place(step.value)
                window = NONE if step.window is None else step.window
                after = step.heads, step.causal, vector(step.bias), window
                return 3, values[step.out], *places, *after, *distances(step.relative), step.key_heads
            case Read():
                return 4, values[step.out], values[step.x], HOW[step.how]
            case Gate():
                return 5, values[step.out], values[step.x], activation(step.activation)
            case Rotate():
                return 6, *place(step.x), step.x.width, vector(step.table), step.heads
            case NormHeads():
                return 7, *place(step.x), step.x.width, vector(step.norm), step.heads, epsilon(step.epsilon)

    steps = []
    for block in program.blocks:
        for _ in range(block.times):
            for i, step in enumerate(block.steps):
                kind, *rest = numbers(step)
                steps.append([kind, i == 0, *rest, *[0] * (STEP_NUMBERS - 2 - len(rest))])
    results = [values[result] for result in program.results]
    head = len(values), len(results), len(steps), folded.positions
    return np.array([*head, *program.widths.values(), *results, *chain.from_iterable(steps)], np.int32)
