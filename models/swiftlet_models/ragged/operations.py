"""The operations of a network in torch: one for each kind of step, and for each kind of steps that run together.

An operation holds the parameters that it needs, on their device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_models.architectures.layers import ACTIVATIONS, rotate
from swiftlet_models.folded import Array, Folded
from swiftlet_models.program import (
    WORDS,
    Attend,
    Gate,
    Index,
    LookUp,
    Multiply,
    Norm,
    NormHeads,
    Place,
    Read,
    Relative,
    Rotate,
)
from swiftlet_models.ragged.attention import attend, attend_with_bias, attend_with_distances
from swiftlet_models.ragged.feed_forward import FeedForward
from swiftlet_models.ragged.in_torch import Kernels
from swiftlet_models.ragged.layout import Layout, Places
from swiftlet_models.ragged.plan import AddAndNorm, Embeddings, NarrowLayer, Planned, Window
from swiftlet_models.ragged.products import Linear, MakeProduct, in_floats


@dataclass
class State:
    """A batch on its way through a network."""

    at: Layout
    places: Places
    kernels: Kernels
    values: dict[str, Tensor] = field(default_factory=dict)  # each (T, width), or (N, width) after the read

    def __getitem__(self, place: Place) -> Tensor:
        """Returns a view of some columns of a value."""
        return self.values[place.value][:, place.first : place.first + place.width]


Operation = Callable[[State], Tensor]
"""Returns the value that it computes."""


class Parameters:
    """The parameters of a folded network on a device. Each is put there once, when it is first asked for."""

    def __init__(self, folded: Folded, device: torch.device, dtype: torch.dtype, make_product: MakeProduct) -> None:
        self.widths = folded.program.widths
        self._folded, self._device, self._dtype, self._make_product = folded, device, dtype, make_product
        self._vectors: dict[str, Tensor] = {}
        self._products: dict[tuple[str, str | None, bool], Linear] = {}
        self._layers: dict[NarrowLayer, FeedForward] = {}

    def vector(self, name: str) -> Tensor:
        """Returns a vector or a table, also that of the words."""
        if name not in self._vectors:
            self._vectors[name] = self._tensor(
                np.asarray(self._folded.words) if name == WORDS else self._folded.vectors[name]
            )
        return self._vectors[name]

    def numbers(self, name: str) -> Tensor:
        """Returns a vector of whole numbers, which the data type of the activations may not hold."""
        return torch.tensor(self._folded.vectors[name], dtype=torch.int64, device=self._device)

    def floats(self, rows: Tensor | None) -> Tensor:
        """Returns rows that the caller gives, as activations."""
        if rows is None:
            raise ValueError("The network is a head, and the batch has no hidden states.")
        return rows.to(self._dtype)

    def norm(self, norm: Norm) -> tuple[Tensor, Tensor, float]:
        """Returns the weight, the bias and the epsilon of a LayerNorm."""
        return self.vector(norm.norm + ".weight"), self.vector(norm.norm + ".bias"), norm.epsilon

    def product(self, step: Multiply, activation: str | None = None) -> Linear:
        """Returns the product of a step, and the activation that follows it at once, if any."""
        key = step.product, activation, step.exact
        if key not in self._products:
            self._products[key] = self._product(*key)
        return self._products[key]

    def _product(self, name: str, activation: str | None, exact: bool) -> Linear:
        product, make = self._folded.product(name), in_floats if exact else self._make_product
        outputs, inputs = product.matrix.shape
        if activation is None or outputs > inputs:
            return make(product, self._device, self._dtype, activation)
        # A product may approximate its activation, which is worth it only where the activations are wide.
        linear, activate = make(product, self._device, self._dtype, None), ACTIVATIONS[activation]
        return lambda x: activate(linear(x))

    def feed_forward(self, layer: NarrowLayer) -> FeedForward:
        """Returns the weights of a layer."""
        if layer not in self._layers:
            self._layers[layer] = FeedForward.of(layer, self._folded, self._tensor)
        return self._layers[layer]

    def _tensor(self, array: Array) -> Tensor:
        return torch.tensor(np.asarray(array, np.float32)).to(self._device, self._dtype)


def operation(part: Planned, parameters: Parameters) -> Operation:
    """Returns the operation of a part of a plan."""
    match part.unit:
        case LookUp() as step:
            return _look_up(step, parameters)
        case Multiply() as step:
            return _multiply(step, parameters)
        case Norm() as step:
            return _norm(step, parameters)
        case NormHeads() as step:
            return _norm_heads(step, parameters)
        case Gate() as step:
            return _gate(step)
        case Rotate() as step:
            return _rotate(step, parameters, in_focus=part.in_focus)
        case Attend() as step:
            return _attend_in_focus(step) if part.in_focus else _attend(step, parameters)
        case Read() as step:
            return _read(step)
        case Window() as fused:
            return _window(fused, parameters)
        case Embeddings() as fused:
            return _embeddings(fused, parameters)
        case AddAndNorm() as fused:
            return _add_and_norm(fused, parameters)
        case NarrowLayer() as fused:
            return _narrow_layer(fused, parameters)


# ---- steps


def _look_up(step: LookUp, parameters: Parameters) -> Operation:
    if step.index == "given":
        return lambda state: parameters.floats(state.at.given)
    table, (value, first, width) = parameters.vector(step.table), step.out
    all_columns = parameters.widths[value]

    def run(state: State) -> Tensor:
        rows = _rows(table, step.index, state)
        if width == all_columns and not step.adds:
            return rows
        out = state.values.get(value)
        if out is None:
            out = rows.new_zeros(len(rows), all_columns)
        place = out[:, first : first + width]
        place.copy_(place + rows if step.adds else rows)
        return out

    return run


def _rows(table: Tensor, index: Index, state: State) -> Tensor:
    at, places = state.at, state.places
    match index:
        case "position":
            return table[places.positions]
        case "token_type":
            return table[at.token_type_ids]
        case "next_word" | "previous_word":
            words = F.pad(table[at.input_ids], (0, 0, 0, 1))  # the last row is that of a neighbour that is not there
            return words[places.after if index == "next_word" else places.before]
        case _:
            return table[at.input_ids]


def _multiply(step: Multiply, parameters: Parameters) -> Operation:
    residual, gain = step.residual, parameters.vector(step.gain) if step.gain else None
    if residual is None:
        product = parameters.product(step, step.activation)
        return lambda state: product(state.values[step.x])
    product = parameters.product(step)
    activate = ACTIVATIONS[step.activation] if step.activation else None

    def run(state: State) -> Tensor:
        x = product(state.values[step.x])
        x = x + state[residual] if gain is None else torch.addcmul(x, state[residual], gain)
        return activate(x) if activate else x

    return run


def _norm(step: Norm, parameters: Parameters) -> Operation:
    residual = step.residual
    if step.centres:
        norm = parameters.norm(step)
        if residual is None:
            return lambda state: state.kernels.layer_norm(state.values[step.x], None, *norm)
        return lambda state: state.kernels.layer_norm(state.values[step.x], None, *norm) + state[residual]
    weight = parameters.vector(step.norm + ".weight")

    def run(state: State) -> Tensor:
        y = F.rms_norm(state.values[step.x], weight.shape, weight, step.epsilon)
        return y if residual is None else y + state[residual]

    return run


def _norm_heads(step: NormHeads, parameters: Parameters) -> Operation:
    weight, value = parameters.vector(step.norm), step.x.value

    def run(state: State) -> Tensor:
        place = state[step.x]
        by_head = place.reshape(len(place), step.heads, -1)
        place.copy_(F.rms_norm(by_head, weight.shape, weight, step.epsilon).flatten(1))
        return state.values[value]

    return run


def _gate(step: Gate) -> Operation:
    activate = ACTIVATIONS[step.activation]

    def run(state: State) -> Tensor:
        first, second = state.values[step.x].chunk(2, 1)
        return activate(first) * second

    return run


def _rotate(step: Rotate, parameters: Parameters, *, in_focus: bool) -> Operation:
    table, value = parameters.vector(step.table), step.x.value

    def run(state: State) -> Tensor:
        positions, place = state.places.positions, state[step.x]
        if in_focus:
            positions = positions[state.places.focus]
        place.copy_(rotate(place[None], table[positions], step.heads)[0])
        return state.values[value]

    return run


def _attend(step: Attend, parameters: Parameters) -> Operation:
    if step.relative is not None:
        return _attend_with_distances(step, step.relative, parameters)
    bias = parameters.vector(step.bias) if step.bias else None
    causal, window = step.causal, step.window

    def run(state: State) -> Tensor:
        at, (query, key, value) = state.at, _heads(step, state)
        if bias is not None or (at.keys and (causal or window)):
            table = query.new_zeros(step.heads, 2 * at.longest - 1) if bias is None else bias
            attended = attend_with_bias(
                query, key, value, at.ends, at.longest, table, causal=causal, window=window, keys=at.keys
            )
        elif at.keys:
            kept = key[at.keys.tokens], value[at.keys.tokens]
            attended = attend(query, *kept, at.ends, at.keys.ends, at.longest)
        else:
            attended = state.kernels.attend(query, key, value, at.ends, at.longest, causal=causal, window=window)
        return attended.flatten(1)

    return run


def _attend_with_distances(step: Attend, relative: Relative, parameters: Parameters) -> Operation:
    rows = parameters.numbers(relative.rows)
    keys, queries = (parameters.vector(name) if name else None for name in (relative.keys, relative.queries))

    def run(state: State) -> Tensor:
        at = state.at
        parts = _heads(step, state)
        return attend_with_distances(*parts, at.ends, at.longest, rows, keys, queries, at.keys).flatten(1)

    return run


def _attend_in_focus(step: Attend) -> Operation:
    """Returns an operation whose queries are the positions in focus."""

    def run(state: State) -> Tensor:
        at, (query, key, value) = state.at, _heads(step, state)
        ends = at.ends
        if at.keys:
            key, value, ends = key[at.keys.tokens], value[at.keys.tokens], at.keys.ends
        return attend(query, key, value, at.focus_ends, ends, at.longest).flatten(1)

    return run


def _heads(step: Attend, state: State) -> tuple[Tensor, Tensor, Tensor]:
    """Returns query, key and value by head, (rows, A, D)."""
    query, key, value = (
        state[place].view(len(state[place]), heads, -1)
        for place, heads in ((step.query, step.heads), (step.key, step.key_heads), (step.value, step.key_heads))
    )
    if (times := step.heads // step.key_heads) > 1:
        key, value = (x.repeat_interleave(times, 1) for x in (key, value))
    return query, key, value


def _read(step: Read) -> Operation:
    if step.how == "focus":
        return lambda state: state.values[step.x][state.places.focus]

    def pool(state: State) -> Tensor:
        x, at = state.values[step.x], state.at
        # `unsafe` skips a check that would wait for the device.
        pooled = torch.segment_reduce(x.float(), step.how, offsets=at.ends.long(), unsafe=True)
        return pooled[state.places.owner].to(x.dtype)

    return pool


# ---- steps that run together


def _window(fused: Window, parameters: Parameters) -> Operation:
    table = parameters.vector(fused.table)
    return lambda state: state.kernels.window(table, state.at.input_ids, state.places.before, state.places.after)


def _embeddings(fused: Embeddings, parameters: Parameters) -> Operation:
    positions = parameters.vector(fused.position.table)
    types = parameters.vector(fused.token_type.table) if fused.token_type else None
    norm = parameters.norm(fused.norm) if fused.norm else None
    words = _words(fused.words, parameters)

    def run(state: State) -> Tensor:
        x, ids = words(state)
        token_types = None if types is None else (state.at.token_type_ids, types)
        return state.kernels.add_embeddings(x, ids, state.places.positions, positions, token_types, norm)

    return run


def _words(step: LookUp | Multiply, parameters: Parameters) -> Callable[[State], tuple[Tensor, Tensor | None]]:
    """Returns a function that gives words: their rows (T, H) and None, or a table and the ids of its rows."""
    if isinstance(step, LookUp):
        table = parameters.vector(step.table)
        return lambda state: (table, state.at.input_ids)
    x, product = step.x, parameters.product(step)
    return lambda state: (product(state.values[x]), None)


def _add_and_norm(fused: AddAndNorm, parameters: Parameters) -> Operation:
    product, norm = parameters.product(fused.multiply), parameters.norm(fused.norm)
    x, residual = fused.multiply.x, fused.residual
    return lambda state: state.kernels.layer_norm(product(state.values[x]), state[residual], *norm)


def _narrow_layer(fused: NarrowLayer, parameters: Parameters) -> Operation:
    layer, attended = parameters.feed_forward(fused), fused.first.x
    residual, entered = fused.residual, fused.entered
    return lambda state: state.kernels.feed_forward(layer, state.values[attended], state[residual], state[entered])
