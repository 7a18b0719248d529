"""The plan of a network in torch: the steps of its program, and which of them one kernel computes together.

Fusions are recognised from steps that follow each other, whatever network they belong to. What a kernel computes on its
way is not kept, so that steps stay apart if a later step reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeGuard

from swiftlet_models.program import (
    Attend,
    Gate,
    Index,
    LookUp,
    Multiply,
    Norm,
    NormHeads,
    Place,
    Program,
    Read,
    Rotate,
    Step,
    output,
)

Widths = Mapping[str, int]


@dataclass(frozen=True)
class Fused:
    """Steps that one kernel computes together. Their result is that of the last one."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Window(Fused):
    """The words of a token's right neighbour, of itself and of its left neighbour, side by side."""

    table: str


@dataclass(frozen=True)
class Embeddings(Fused):
    """The sum of words, positions and token types, and its LayerNorm."""

    words: LookUp | Multiply
    position: LookUp
    token_type: LookUp | None
    norm: Norm | None


@dataclass(frozen=True)
class AddAndNorm(Fused):
    """A product, the residual that is added to it, and the LayerNorm of the sum."""

    multiply: Multiply
    residual: Place
    norm: Norm


@dataclass(frozen=True)
class NarrowLayer(Fused):
    """The part of a layer with a bottleneck that follows its attention: see `swiftlet_models.ragged.feed_forward`."""

    first: Multiply
    residual: Place  # that the first step adds
    networks: tuple[tuple[Multiply, Multiply], ...]  # an inner and an outer product each
    last: Multiply
    entered: Place  # the hidden states that the last step adds


Unit = Step | Window | Embeddings | AddAndNorm | NarrowLayer
Fusion = Callable[[tuple[Step, ...], Widths], Iterator[Window | Embeddings | AddAndNorm | NarrowLayer]]
"""Yields what the first steps of some may be fused to, the most of them first."""


class Planned(NamedTuple):
    """A part of a plan."""

    unit: Unit
    out: str  # the value that it computes
    ended: frozenset[str]  # values that no later part reads
    in_focus: bool  # whether it follows the program's read


def plan(program: Program, fusions: tuple[Fusion, ...]) -> list[Planned]:
    """Returns the units of a program in the order in which they run, one for each time that they run."""
    steps = tuple(step for block in program.blocks for _ in range(block.times) for step in block.steps)
    needed = _needed(steps, program.results)
    planned: list[Planned] = []
    start, in_focus = 0, False
    while start < len(steps):
        found = (unit for fusion in fusions for unit in fusion(steps[start:], program.widths))
        fused = next((unit for unit in found if _keeps(unit, needed[start + len(unit.steps)])), None)
        stop = start + (len(fused.steps) if fused else 1)
        out = output(steps[stop - 1])
        planned.append(Planned(fused or steps[start], out, (needed[start] | {out}) - needed[stop], in_focus))
        in_focus |= isinstance(steps[start], Read)
        start = stop
    return planned


def inputs(step: Step) -> set[str]:
    """Returns the names of the values that a step reads."""
    match step:
        case LookUp():  # it keeps other columns, or adds to its own
            return {step.out.value}
        case Multiply() | Norm():
            return {step.x, step.residual.value} if step.residual else {step.x}
        case Attend():
            return {step.query.value, step.key.value, step.value.value}
        case NormHeads() | Rotate():
            return {step.x.value}
        case Gate() | Read():
            return {step.x}


def _needed(steps: tuple[Step, ...], results: tuple[str, ...]) -> list[frozenset[str]]:
    """Returns the values that are read from each step on, and after the last one."""
    needed = [frozenset(results)]
    for step in reversed(steps):
        needed.append(needed[-1] - {output(step)} | inputs(step))
    return needed[::-1]


def _keeps(unit: Fused, needed: frozenset[str]) -> bool:
    """Returns whether a unit computes all values of its steps that are needed after it."""
    *before, last = map(output, unit.steps)
    return needed.isdisjoint({*before} - {last})


# ---- fusions


def window(steps: tuple[Step, ...], widths: Widths) -> Iterator[Window]:
    """Yields three look-ups of words that fill a value."""
    look_ups = steps[:3]
    match look_ups:
        case [LookUp(out=Place(value, 0, width), table=table), LookUp(), LookUp()] if widths[value] == 3 * width:
            indices: tuple[Index, ...] = ("next_word", "word", "previous_word")
            places = (Place(value, i * width, width) for i in range(3))
            if look_ups == tuple(LookUp(place, table, index) for place, index in zip(places, indices, strict=True)):
                yield Window(look_ups, table)


def embeddings(steps: tuple[Step, ...], widths: Widths) -> Iterator[Embeddings]:
    """Yields a sum of tables, with words that are looked up first or come from a product that follows."""
    look_ups = _summed(steps, widths)
    stop = len(look_ups)
    words: LookUp | Multiply
    match [look_up.index for look_up in look_ups]:
        case ["word", "position"] | ["word", "position", "token_type"]:
            words, position, *token_type = look_ups
        case ["position"] | ["position", "token_type"] if stop < len(steps):
            (position, *token_type), product = look_ups, steps[stop]
            if not _adds(product, position.out) or product.x == position.out.value:
                return
            words, stop = product, stop + 1
        case _:
            return
    parts = words, position, token_type[0] if token_type else None
    match steps[stop : stop + 1]:
        case [Norm(x=x, centres=True, residual=None) as norm] if x == output(words):
            yield Embeddings(steps[: stop + 1], *parts, norm)
    yield Embeddings(steps[:stop], *parts, None)


def _summed(steps: tuple[Step, ...], widths: Widths) -> list[LookUp]:
    """Returns the look-ups at the start that are added up to a value."""
    found: list[LookUp] = []
    for step in steps:
        place = found[0].out if found else _whole(output(step), widths)
        if not isinstance(step, LookUp) or step.out != place or step.adds != bool(found):
            break
        found.append(step)
    return found


def add_and_norm(steps: tuple[Step, ...], _: Widths) -> Iterator[AddAndNorm]:
    """Yields a product with a residual, and the norm that follows."""
    match steps[:2]:
        case [Multiply(residual=Place() as residual) as multiply, Norm(x=x, centres=True, residual=None) as norm]:
            if _adds(multiply, residual) and x == multiply.out:
                yield AddAndNorm(steps[:2], multiply, residual, norm)


def _adds(step: Step, residual: Place) -> TypeGuard[Multiply]:
    """Returns whether a step is a product to which a residual is added, and nothing else."""
    return isinstance(step, Multiply) and step == Multiply(step.out, step.x, step.product, residual, exact=step.exact)


def narrow_layer(steps: tuple[Step, ...], widths: Widths) -> Iterator[NarrowLayer]:
    """Yields what follows the attention in a layer of MobileBERT."""
    match steps[0]:
        case Multiply(residual=Place() as residual, gain=str(), activation=None, out=stream) as first:
            networks = _networks(steps[1:], _whole(stream, widths))
        case _:
            return
    stop = 1 + 2 * len(networks)
    within = {stream, *(inner.out for inner, _ in networks)}
    are_equal = widths[first.x] == widths[stream] and len({widths[inner.out] for inner, _ in networks}) == 1
    match steps[stop : stop + 1]:
        case [Multiply(residual=Place(value) as entered, gain=str(), activation=None, x=x) as last]:
            if are_equal and x == stream and entered == _whole(value, widths) and value not in within:
                yield NarrowLayer(steps[: stop + 1], first, residual, networks, last, entered)


def _networks(steps: tuple[Step, ...], stream: Place) -> tuple[tuple[Multiply, Multiply], ...]:
    """Returns the networks with ReLU at the start that read a value and add to it."""
    found: list[tuple[Multiply, Multiply]] = []
    for inner, outer in zip(steps[::2], steps[1::2], strict=False):
        if not (isinstance(inner, Multiply) and isinstance(outer, Multiply) and outer.gain):
            break
        plain = (
            Multiply(inner.out, stream.value, inner.product, activation="relu"),
            Multiply(stream.value, inner.out, outer.product, stream, outer.gain),
        )
        if (inner, outer) != plain or inner.out == stream.value:
            break
        found.append((inner, outer))
    return tuple(found)


def _whole(value: str, widths: Widths) -> Place:
    return Place(value, 0, widths[value])


FUSIONS: Final[tuple[Fusion, ...]] = (window, embeddings, add_and_norm)
FUSIONS_IN_FLOATS: Final[tuple[Fusion, ...]] = (*FUSIONS, narrow_layer)
"""With those that contain products."""
