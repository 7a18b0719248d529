"""A network as a program: the steps that every engine runs, in the order in which it runs them.

A step computes a value from values, for each row by itself. Only two kinds of steps read other rows: `Attend`, and a
`Read` that pools. A value (rows, width) has a name, and a later step may replace it. In front of the program's one
`Read`, the rows are the T tokens of a batch, and after it the N positions that the head reads. The read is mostly in
front of the head, and behind it where outputs are pooled.

Tables, matrices and norms are named as in `swiftlet_models/folded.py`, and `folding.py` makes programs. An engine
knows steps, and neither architectures nor traits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final, Literal, NamedTuple

WORDS: Final = "words"  # the word table, `Folded.words`
JOIN: Final = "+"  # between the names of two products that are one

GIVEN: Final = "given"  # names no table, but the rows that the caller gives, one for each token
Index = Literal["word", "next_word", "previous_word", "position", "token_type", "given"]
"""What chooses the row of a table: a token's id, the id of a neighbour in its sequence, its position or its type."""
How = Literal["focus", "mean", "max"]


class Place(NamedTuple):
    """Some columns of a value."""

    value: str
    first: int
    width: int


@dataclass(frozen=True)
class LookUp:
    """out = the rows of a table, added to what is there if `adds`. A token without the neighbour gets zeros."""

    out: Place
    table: str
    index: Index
    adds: bool = False


@dataclass(frozen=True)
class Multiply:
    """out = activation(x W^T + b + gain * residual)."""

    out: str
    x: str
    product: str
    residual: Place | None = None
    gain: str | None = None  # a vector; 1 without it
    activation: str | None = None  # of `architectures.layers.ACTIVATIONS`
    exact: bool = False
    """Whether the product is computed in floats by engines that compute others in 8 bits: those of a head's outputs."""


@dataclass(frozen=True)
class Norm:
    """out = LayerNorm(x), or RMSNorm(x), plus a residual if there is one.

    RMSNorm divides by the root mean square and has no bias (Zhang and Sennrich 2019, arXiv:1910.07467).
    """

    out: str
    x: str
    norm: str
    epsilon: float
    centres: bool = True
    """Whether it is a LayerNorm."""
    residual: Place | None = None


@dataclass(frozen=True)
class NormHeads:
    """Replaces each head's columns of a value by their RMSNorm."""

    x: Place
    norm: str  # a vector (D,)
    heads: int
    epsilon: float


@dataclass(frozen=True)
class Gate:
    """out = activation(the first half of x) times its second half."""

    out: str
    x: str
    activation: str


@dataclass(frozen=True)
class Rotate:
    """Turns each head's columns of a value by the angles of a row's position (RoPE: Su et al. 2021, arXiv:2104.09864).

    Columns d and D / 2 + d of a head, which has D, are a point in a plane.
    """

    x: Place
    table: str  # a vector (P, D): the cosines of a position's D / 2 angles, then their sines
    heads: int


@dataclass(frozen=True)
class Relative:
    """What the distance d from a query to a key adds to their score (He et al. 2021, arXiv:2006.03654, section 3.1).

    It is query . keys[r] + key . queries[r], where r is number P - 1 + d of `rows`. The larger d, the smaller r.
    """

    rows: str  # a vector (2 P - 1,)
    keys: str | None  # vectors (R, width of the query), by head as the query is
    queries: str | None


@dataclass(frozen=True)
class Attend:
    """out = attention. The query is scaled. Keys and values are those of all tokens of the row's sequence.

    Each of `key_heads` heads of keys and values serves heads / key_heads heads of the query, which follow each other
    (Ainslie et al. 2023, arXiv:2305.13245).
    """

    out: str
    query: Place
    key: Place
    value: Place
    heads: int
    key_heads: int
    causal: bool = False  # whether a token attends only to itself and the tokens before it
    window: int | None = None  # a token attends to tokens at a distance of at most window // 2; None: to all
    bias: str | None = None  # a vector (heads, 2 P - 1): the distance d from a query to a key has the column P - 1 + d
    relative: Relative | None = None


@dataclass(frozen=True)
class Read:
    """out = the rows of x that the head reads: those in focus, or the mean or the maximum of a sequence's tokens."""

    out: str
    x: str
    how: How = "focus"


Step = LookUp | Multiply | Norm | NormHeads | Gate | Rotate | Attend | Read


@dataclass(frozen=True)
class Block:
    """Steps that run `times` times. Only the value that they replace passes from one block to the next."""

    steps: tuple[Step, ...]
    times: int = 1


@dataclass(frozen=True)
class Program:
    """The steps of a network: its embeddings, its layers, and its head."""

    blocks: tuple[Block, ...]
    widths: Mapping[str, int]  # of the values
    results: tuple[str, ...]
    """The values that hold the outputs after the last step, side by side."""

    def __iter__(self) -> Iterator[Step]:
        """Yields every step once, also those of a block that runs several times."""
        return chain.from_iterable(block.steps for block in self.blocks)

    @property
    def attends_by_position(self) -> bool:
        """Whether attention depends on the positions of its queries."""
        return any(isinstance(step, Attend) and _by_position(step) for step in self)


def _by_position(step: Attend) -> bool:
    return step.causal or any(part is not None for part in (step.window, step.bias, step.relative))


def joined(program: Program) -> Program:
    """Joins two products of the same value that follow each other, because one wide product is faster than two.

    The joined product and its output are named after both: `Folded.product` returns it. Products stay apart if a step
    reads all of an output, since it could not read a part of the joined one.
    """
    widths = dict(program.widths)

    def join(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        for i, (first, second) in enumerate(pairwise(steps)):
            if not isinstance(first, Multiply) or not isinstance(second, Multiply):
                continue
            if _may_join(first, second, program.results, (*steps[:i], *steps[i + 2 :])):
                both = replace(
                    first, out=f"{first.out}{JOIN}{second.out}", product=f"{first.product}{JOIN}{second.product}"
                )
                widths[both.out] = widths[first.out] + widths[second.out]
                starts = {first.out: 0, second.out: widths[first.out]}
                return (*steps[:i], both, *(_moved(step, both.out, starts) for step in steps[i + 2 :]))
        return steps

    blocks = tuple(replace(block, steps=join(block.steps)) for block in program.blocks)
    return replace(program, blocks=blocks, widths=widths)


def _may_join(first: Multiply, second: Multiply, results: Sequence[str], others: Sequence[Step]) -> bool:
    plain, outputs = Multiply("", first.x, ""), {first.out, second.out}
    if any(replace(step, out="", product="") != plain for step in (first, second)):
        return False
    if first.out in (first.x, second.out) or not outputs.isdisjoint(results):
        return False
    others = [step for step in others if not isinstance(step, NormHeads | Rotate)]
    return not any(output(step) in outputs or getattr(step, "x", None) in outputs for step in others)


def output(step: Step) -> str:
    """Returns the name of the value that a step computes."""
    if isinstance(step, NormHeads | Rotate):
        return step.x.value
    return step.out.value if isinstance(step, LookUp) else step.out


def _moved(step: Step, value: str, starts: Mapping[str, int]) -> Step:
    """Returns a step that takes the columns of some values in another value, where they begin at `starts`."""

    def move(place: Place) -> Place:
        return Place(value, starts[place.value] + place.first, place.width) if place.value in starts else place

    if isinstance(step, NormHeads | Rotate):
        return replace(step, x=move(step.x))
    if isinstance(step, Attend):
        return replace(step, query=move(step.query), key=move(step.key), value=move(step.value))
    if isinstance(step, Multiply | Norm) and step.residual is not None:
        return replace(step, residual=move(step.residual))
    return step


def reading_late(program: Program) -> Program:
    """Moves the read to the end of its block, so that attention has the same rows of queries and keys.

    Every step between them computes each row by itself. A program that pools has nothing between them. A norm that is
    repeated for the rows that are read is left out, because it is there already.
    """

    def late(block: Block) -> Block:
        reads = tuple(step for step in block.steps if isinstance(step, Read))
        kept: list[Step] = []
        for step in block.steps:
            if step not in reads and not _is_there(step, kept):
                kept.append(step)
        return replace(block, steps=(*kept, *reads))

    return replace(program, blocks=tuple(map(late, program.blocks)))


def _is_there(step: Step, before: Sequence[Step]) -> bool:
    """Returns whether steps compute what a norm computes, and nothing that replaces its value or what it reads."""
    if not isinstance(step, Norm) or step not in before or step.out == step.x:
        return False
    since = before[before.index(step) + 1 :]
    return {step.x, step.out}.isdisjoint(map(output, since))
