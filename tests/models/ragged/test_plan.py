"""The plans of networks: which steps run together, and that it changes no result."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlet_models.artifact import Embedding
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded, Product
from swiftlet_models.folding import fold
from swiftlet_models.program import (
    JOIN,
    WORDS,
    Attend,
    Block,
    Gate,
    Index,
    LookUp,
    Multiply,
    Norm,
    Place,
    Program,
    Read,
    Rotate,
    Step,
    output,
)
from swiftlet_models.ragged import network as network_module
from swiftlet_models.ragged.network import Network
from swiftlet_models.ragged.plan import (
    AddAndNorm,
    Embeddings,
    Fused,
    NarrowLayer,
    Window,
    inputs,
)
from swiftlet_models.ragged.products import in_floats, in_int8
from swiftlet_serve.types import Batch
from tests.models.ragged.test_network import CPU, computed, ragged, sequences
from tests.support.checkpoints import Task, relative_error
from tests.support.native_kernels import run_folded
from tests.support.networks import CONFIGS, NETWORKS, network
from tests.support.tiers import first, first_of_each

POOLINGS = ("cls", "mean", "max")
BERT = {Embeddings: 1, AddAndNorm: 2}
FUSED: dict[str, dict[type[Fused], int]] = {
    "albert": {Embeddings: 1, AddAndNorm: 4},
    "mobilebert": {Window: 1, Embeddings: 1, NarrowLayer: 2},
    **dict.fromkeys(("bert", "roberta", "electra", "distilbert"), BERT),
    "mpnet": {Embeddings: 1, AddAndNorm: 4},
    "gpt2": {Embeddings: 1},
    "modernbert": {},
    "deberta_v2": {Embeddings: 1, AddAndNorm: 4},
}
# The layers that compute all tokens; others: none.
WHOLE_LAYERS = {"albert": 1, "mobilebert": 1, "mpnet": 2, "gpt2": 2, "modernbert": 3, "deberta_v2": 2}


def folded(architecture: str, task: Task, pooling: str | None = None) -> Folded:
    model = network(architecture, task)
    parameters = model.encoder.state_dict(prefix="encoder.") if pooling else model.state_dict()
    weights = {name: tensor.numpy() for name, tensor in parameters.items()}
    return fold(architecture, CONFIGS[architecture], weights, 1, Embedding(pooling) if pooling else None)


@pytest.fixture
def unfused(monkeypatch) -> None:
    for name in ("FUSIONS", "FUSIONS_IN_FLOATS"):
        monkeypatch.setattr(network_module, name, ())


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_steps_of_each_family_run_together(architecture, task):
    units = [part.unit for part in ragged(architecture, task).plan]
    joined = [unit for unit in units if isinstance(unit, Multiply) and JOIN in unit.product]

    assert Counter(type(unit) for unit in units if isinstance(unit, Fused)) == FUSED[architecture]
    assert len(joined) == WHOLE_LAYERS.get(architecture, 0)
    assert any(isinstance(unit, LookUp) for unit in units) == (architecture == "modernbert")


@pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))
def test_fusions_change_no_result(architecture, task, unfused):
    batch, fused = Batch.of(sequences(task)), ragged(architecture, task)
    plain = Network(folded(architecture, task), CPU, torch.float32)

    assert not any(isinstance(part.unit, Fused) for part in plain.plan)
    assert relative_error(computed(plain, batch), computed(fused, batch)) <= 1e-6


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_values_are_kept_as_long_as_they_are_read(architecture, task):
    own = ragged(architecture, task)
    kept: set[str] = set()
    for part in own.plan:
        steps = part.unit.steps if isinstance(part.unit, Fused) else (part.unit,)
        assert isinstance(steps[0], LookUp) or inputs(steps[0]) <= kept
        kept = (kept | {part.out}) - part.ended
        assert len(kept) <= 3
    assert len(kept) == 1


def test_products_of_8_bits_run_alone():
    own = Network(folded("mobilebert", "qa"), CPU, torch.float32, in_int8)

    assert not any(isinstance(part.unit, NarrowLayer) for part in own.plan)


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_layers_compute_all_tokens_only_where_a_network_reads_them(architecture, pooling):
    own = Network(folded(architecture, "classify", pooling), CPU, torch.float32)

    assert own.reads_all == (pooling != "cls" or architecture in ("mpnet", "gpt2", "modernbert", "deberta_v2"))
    assert own.has_static_shapes == (architecture not in ("mpnet", "deberta_v2"))


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_only_the_inner_products_of_layers_may_approximate_their_activations(architecture, task):
    """A head applies its own exactly, and its output is in floats. A gate is not a product."""
    own, seen = folded(architecture, task), {}

    def make(product, device, dtype, activation):
        seen[id(product)] = activation
        return in_floats(product, device, dtype, activation)

    Network(own, CPU, torch.float32, make)
    found = {name: seen[id(product)] for name, product in own.products.items() if id(product) in seen}

    inner = {name for name in own.products if "inner" in name and architecture != "modernbert"}
    assert {name for name, activation in found.items() if activation} == inner
    assert "head.output" not in found
    assert own.products.keys() & {"head.decoder", "head.transform", "head.pooler"} <= found.keys()


def test_memory_of_a_network_is_free_when_nothing_holds_it():
    own = Network(folded("mobilebert", "qa"), CPU, torch.float32)
    alive = weakref.ref(own)
    gc.disable()
    try:
        del own
        assert alive() is None
    finally:
        gc.enable()


# ---- programs that no family has


WIDTH, POSITIONS, VOCABULARY = 8, 20, 23
NARROW = ("a", "b", "c", "d")  # values
WIDTHS = dict.fromkeys(NARROW, WIDTH) | {"window": 3 * WIDTH, "halves": 2 * WIDTH}
INDICES: tuple[Index, ...] = ("word", "next_word", "previous_word", "position", "token_type")


class Author:
    """Writes legal programs at random, of steps that could run together more often than by chance."""

    def __init__(self, draw: Random) -> None:
        self.draw, self.numbers = draw, np.random.default_rng(draw.randrange(2**32))
        words = self.array(VOCABULARY, WIDTH)
        self.folded = Folded(
            Program((), WIDTHS, ("a",)), WIDTH, POSITIONS, words, vectors={"embeddings.position": words[:POSITIONS]}
        )
        self.there: list[str] = []  # values with the rows of the next step
        self.tokens: list[str] = []  # those with a row for every token

    def array(self, *shape: int) -> np.ndarray:
        """Returns numbers that single precision holds exactly."""
        return (self.numbers.normal(size=shape) / 2).astype(np.float32).astype(np.float64)

    def vector(self, *shape: int) -> str:
        name = f"vector {len(self.folded.vectors)}"
        self.folded.vectors[name] = self.array(*shape)
        return name

    def value(self) -> str:
        return self.draw.choice(NARROW)

    def known(self, among: list[str] | None = None) -> str:
        return self.draw.choice(self.there if among is None else among)

    def place(self, among: list[str] | None = None) -> Place:
        value = self.known(among)
        return Place(value, self.draw.randrange(0, WIDTHS[value], WIDTH), WIDTH)

    def product(self, out: str, x: str) -> str:
        name = f"product {len(self.folded.products)}"
        self.folded.products[name] = Product(self.array(WIDTHS[out], WIDTHS[x]) / 2, self.array(WIDTHS[out]))
        return name

    def look_up(self, out: Place, index: Index, *, adds: bool) -> LookUp:
        is_words = index in ("word", "next_word", "previous_word")
        rows = {"position": POSITIONS, "token_type": 2}.get(index, VOCABULARY)
        table = WORDS if is_words and self.draw.random() < 0.5 else self.vector(rows, WIDTH)
        return LookUp(out, table, index, adds)

    def multiply(self, out: str, x: str, activation: str | None = None) -> Multiply:
        return Multiply(out, x, self.product(out, x), activation=activation)

    def add(self, out: str, x: str, residual: Place, *, gain: bool, activation: str | None = None) -> Multiply:
        vector = self.vector(WIDTH) if gain else None
        return Multiply(out, x, self.product(out, x), residual, vector, activation)

    def norm(self, out: str, x: str) -> Norm:
        name = self.vector(WIDTHS[out])
        self.folded.vectors |= {name + ".weight": self.array(WIDTHS[out]), name + ".bias": self.array(WIDTHS[out])}
        return Norm(out, x, name, 0.1)

    # ---- steps that could run together

    def some_look_ups(self) -> Iterator[Step]:
        value = self.draw.choice([*NARROW, "window"])
        for i in range(self.draw.randint(1, 3)):
            place = Place(value, self.draw.randrange(0, WIDTHS[value], WIDTH), WIDTH)
            yield self.look_up(place, self.draw.choice(INDICES), adds=i > 0 or self.draw.random() < 0.3)

    def a_window(self) -> Iterator[Step]:
        indices: list[Index] = ["next_word", "word", "previous_word"]
        for i, index in enumerate(indices):
            yield LookUp(Place("window", i * WIDTH, WIDTH), WORDS, index)

    def embeddings(self) -> Iterator[Step]:
        value, x, projects = self.value(), self.known() if self.there else None, self.draw.random() < 0.5
        place, indices = Place(value, 0, WIDTH), ["word", "position", "token_type"]
        for i, index in enumerate(indices[x is not None and projects : self.draw.randint(2, 3)]):
            yield self.look_up(place, index, adds=i > 0)  # type: ignore[arg-type]
        out = value
        if x is not None and projects:
            out = self.draw.choice([value, self.value()])
            yield self.add(out, x, place, gain=False)
        if self.draw.random() < 0.5:
            yield self.norm(self.draw.choice([out, self.value()]), out)

    def a_product(self) -> Iterator[Step]:
        activation = self.draw.choice([None, "relu", "gelu", "tanh"])
        x = self.known()
        if self.draw.random() < 0.5:
            yield self.multiply(self.draw.choice([*NARROW, "window"]), x, activation)
        else:
            yield self.add(self.value(), x, self.place(), gain=self.draw.random() < 0.5, activation=activation)

    def two_products(self) -> Iterator[Step]:
        x = self.known()
        yield from (self.multiply(self.value(), x), self.multiply(self.value(), x))

    def norms(self) -> Iterator[Step]:
        out = self.draw.choice(NARROW)
        if self.draw.random() < 0.7:
            yield self.add(out, self.known(), self.place(), gain=False)
        elif out not in self.there:
            return
        for _ in range(self.draw.randint(1, 2)):
            x, out = out, self.draw.choice([out, self.value()])
            yield self.norm(out, x)

    def narrow_layer(self) -> Iterator[Step]:
        stream, inner = self.value(), self.value()
        entered = self.place([*self.there, stream])
        yield self.add(stream, self.known(), self.place(), gain=True)
        for _ in range(self.draw.randint(1, 2)):
            yield self.multiply(inner, stream, "relu")
            yield self.add(stream, inner, Place(stream, 0, WIDTH), gain=True)
        out = self.draw.choice([entered.value if entered.value in NARROW else "a", self.value()])
        yield self.add(out, stream, entered, gain=True)

    def a_gate(self) -> Iterator[Step]:
        yield self.multiply("halves", self.known())
        yield Gate(self.value(), "halves", self.draw.choice(["relu", "gelu"]))

    def a_rotation(self) -> Iterator[Step]:
        """And two products that may be joined before it."""
        if self.draw.random() < 0.5:
            yield from self.two_products()
        yield Rotate(self.place(), self.vector(POSITIONS, WIDTH // 2), heads=2)

    def attention(self) -> Iterator[Step]:
        yield Attend(self.value(), self.place(), self.place(self.tokens), self.place(self.tokens), heads=2, key_heads=2)

    def write(self) -> Folded:
        """Returns a network with a random program."""
        look_ups, others = [self.some_look_ups, self.a_window, self.embeddings], [self.a_product, self.two_products]
        others += [self.norms, self.narrow_layer, self.a_gate, self.a_rotation]
        steps: list[Step] = []

        def take(more: Iterator[Step]) -> None:
            for step in more:
                self.there.append(output(step))
                steps.append(step)

        take(self.draw.choice(look_ups)())
        for _ in range(self.draw.randint(0, 6)):
            self.tokens = self.there
            take(self.draw.choice([*look_ups, *others, self.attention])())
        x = self.known()
        read, self.tokens = Read(self.value() if x in NARROW else x, x), self.there
        self.there = []
        take(iter([read]))
        for _ in range(self.draw.randint(0, 4)):
            self.tokens = [value for value in self.tokens if value not in self.there]
            take(self.draw.choice([*others, self.attention] if self.tokens else others)())
        self.folded.program = Program((Block(tuple(steps)),), WIDTHS, (self.known(),))
        return self.folded


@pytest.mark.parametrize("count", first([60, 300], 60))
def test_any_program_computes_what_its_steps_say(count):
    settings(max_examples=count)(given(st.randoms(use_true_random=False))(check_program))()


def check_program(draw: Random) -> None:
    own = Author(draw).write()
    encodings = [
        Encoding(
            np.array([draw.randrange(VOCABULARY) for _ in range(length)]),
            np.array([draw.randrange(2) for _ in range(length)]),
            np.array(sorted({0, length // 2, length - 1})),
        )
        for length in (5, 1, 9)
    ]
    batch = Batch.of(encodings)
    found = computed(Network(own, CPU, torch.float64), batch)
    expected = torch.from_numpy(run_folded(own, batch))  # a gate may make all of it zero

    assert (found - expected).abs().max() <= 1e-6 * (1 + expected.abs().max())
