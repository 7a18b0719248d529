"""Tests of the native engine: it computes the network, the same bits in every batch, and rejects invalid batches."""

from __future__ import annotations

import ctypes
import itertools
import pickle
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swiftlet_models.artifact import Precision, open_artifact
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded, FoldingError, Product
from swiftlet_models.folding import fold
from swiftlet_models.program import (
    WORDS,
    Attend,
    Block,
    Gate,
    LookUp,
    Multiply,
    Norm,
    Place,
    Program,
    Read,
    Relative,
    Rotate,
    Step,
)
from swiftlet_models.tensors import round_to_bf16, widen
from swiftlet_serve.engines import _kernel_library, _kernel_selection, _program_numbers, native
from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.engines._matrices import PRECISIONS, quantise
from swiftlet_serve.engines._program_numbers import Parameters, without_adapter
from swiftlet_serve.engines.native import Native
from swiftlet_serve.engines.onnx_cpu import PaddedOnnx, RaggedOnnx
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.types import Batch
from swiftlet_serve.types.topk import NOTHING, Ranked, Ranking, Scored, log_probabilities, rank
from swiftlet_serve.workers.hosted_model import EngineModel, host_model, run_batch
from tests.support.adapters import adapted
from tests.support.artifact_fuzz import fuzz, sanitizer_environment
from tests.support.artifacts import make_artifact
from tests.support.native_kernels import (
    ACTIVATIONS,
    CONFIGS,
    NETWORKS,
    POSITIONS,
    SANITIZE,
    VARIANTS,
    VOCABULARY,
    Pair,
    best,
    encoding,
    folded,
    kernels,
    network,
    plain,
    plain_tiles,
    run_folded,
    sanitized,
    torch_rows,
    variant,
    weights,
)
from tests.support.remote import EXTENSIONS, Remote, compile_program, emulator
from tests.support.tiers import first, first_of_each

# Relative RMS errors on networks whose activations are near 1. Measured in int8: 0.01 to 0.04, in bf16: 0.002 to 0.006.
TOLERANCE: dict[Precision, float] = {"int8": 0.08, "bf16": 3 / 256}  # a number in bf16 is rounded by up to 1 / 512
AVX512 = {"avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"}
ACTIVATION_CODES = {"relu": 1, "gelu": 2, "gelu_new": 3, "tanh": 4}


@pytest.fixture(scope="module")
def arm(tmp_path_factory) -> Callable[[str], Path]:
    """Compiles kernels for ARM, each at most once."""
    directory = tmp_path_factory.mktemp("arm")
    return cache(lambda kernel: compile_program(kernel, directory / kernel))


SERVING = _kernel_selection.best()
INTEL = [name for name in ("amx", "avx512bf16", "avx512vnni", "avxvnni") if SERVING is None or name != SERVING.kernel]


# AMX has tiles and all instructions of AVX-512, and `neon_i8mm` all of ARM.
PAIRS = ["own", *INTEL, *EXTENSIONS]
EMULATED = (INTEL[0], "neon_i8mm")


@pytest.fixture(scope="module", params=first(PAIRS, "own", *EMULATED))
def pair(request, tmp_path_factory) -> Iterator[Pair]:
    """The kernels that serve on this CPU, and Intel's and ARM's other kernels, each with reference kernels."""
    directory = tmp_path_factory.mktemp("native")
    if request.param == "own":
        yield Pair(best(), plain(best(), directory))
    elif request.param in EXTENSIONS:
        with Remote(emulator(), str(request.getfixturevalue("arm")(request.param))) as library:
            yield Pair(library, plain(library, directory))
    else:
        library = kernels(request.param, directory)
        yield Pair(library, plain(library, directory))


@cache
def engine(architecture: str, task: str, precision: Precision = "int8") -> Native:
    return Native(best(), folded(architecture, task), precision=precision)


def multiply(library: Library, x, weight, scale, bias, activation=0, residual=None, gain=None) -> np.ndarray:
    """Computes a product with a library. Without `gain`, a residual has the gain 1. Weights of 16 bits are bf16."""
    (rows, k), n, lanes = x.shape, len(weight), library.c.swiftlet_lanes()
    out = np.full((rows, -(-n // lanes) * lanes), np.nan, np.float32)

    def pointer(array):
        return None if array is None else np.ctypeslib.as_ctypes(array)

    wide = None if residual is None else np.ascontiguousarray(np.pad(residual, ((0, 0), (0, out.shape[1] - n))))
    many = None if gain is None else np.pad(gain, (0, out.shape[1] - n))
    arrays = [x, weight, scale, bias], [wide, many, out]
    precision = PRECISIONS["bf16" if weight.dtype == np.uint16 else "int8"]
    status = library.c.swiftlet_multiply(
        precision, rows, n, k, *map(pointer, arrays[0]), activation, *map(pointer, arrays[1])
    )
    assert status == 0
    return out[:, :n]


@st.composite
def products(draw: st.DrawFn):
    """Draws activations, which may have rows of zeros and outliers, and a matrix in int8, of any shape."""
    rows, n, k = (
        draw(st.one_of(st.integers(1, 15), st.integers(16, 70))),
        draw(st.integers(1, 100)),
        16 * draw(st.integers(1, 20)),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = (rng.normal(size=(rows, k)) * draw(st.sampled_from([1e-20, 1e-3, 1, 1e6]))).astype(np.float32)
    x[rng.integers(rows)] = draw(st.sampled_from([0.0, 1.0, -3.0]))
    x[rng.integers(rows), rng.integers(k)] *= draw(st.sampled_from([0, 1, 100]))
    if draw(st.booleans()):
        x = np.abs(x)
    weight = rng.integers(-127, 128, (n, k)).astype(np.int8)
    if draw(st.booleans()):
        weight[:] = 127  # with equal activations, this gives the largest possible sums
    scale, bias = rng.uniform(0.001, 0.1, n).astype(np.float32), rng.normal(size=n).astype(np.float32)
    return x, weight, scale, bias


@given(products())
def test_multiply_error_is_that_of_the_quantised_activations(pair, product):
    x, weight, scale, bias = product
    actual = multiply(pair.library, *product)

    levels = pair.library.c.swiftlet_levels()
    step = (x.max(1).clip(0) - x.min(1).clip(None, 0)).astype(np.float64) / levels
    matrix = weight * scale[:, None].astype(np.float64)
    exact = x.astype(np.float64) @ matrix.T + bias
    # Quantisation rounds by at most half a step. The fp32 error of a sum is a millionth of its largest terms.
    allowed = 0.5 * step[:, None] * np.abs(matrix).sum(1)
    allowed += 2e-6 * (step[:, None] * levels * np.abs(matrix).sum(1) + np.abs(bias)) + 1e-30
    assert (np.abs(actual - exact) <= 1.001 * allowed).all()


@given(products(), st.sampled_from(sorted(ACTIVATION_CODES.values())), st.booleans(), st.booleans())
def test_multiply_equals_the_reference_kernel_bit_by_bit(pair, product, activation, residual, gain):
    x, weight, *_ = product
    rng = np.random.default_rng(len(x))
    more = {"activation": activation if np.abs(x).max() < 1e3 else 1}
    if residual:
        more["residual"] = rng.normal(size=(len(x), len(weight))).astype(np.float32)
        more["gain"] = rng.normal(size=len(weight)).astype(np.float32) if gain else None

    assert multiply(pair.library, *product, **more).tobytes() == multiply(pair.plain, *product, **more).tobytes()


@given(products(), st.integers(0, 100))
def test_multiply_computes_each_row_by_itself(pair, product, which):
    x, *matrix = product
    row = which % len(x)
    together, alone = (multiply(pair.library, rows, *matrix) for rows in (x, x[row : row + 1]))

    assert together[row].tobytes() == alone[0].tobytes()


@settings(max_examples=40)  # tiles in software are slow
@given(products(), st.sampled_from([0, *sorted(ACTIVATION_CODES.values())]), st.booleans())
def test_multiply_in_bf16_rounds_its_inputs_only(pair, product, activation, residual):
    """And equals the reference kernel, and each row alone, bit by bit."""
    x, weight, _, bias = product
    weight = round_to_bf16(weight / np.float32(127))
    if pair.library.c.swiftlet_floats_per_lane() == 2:
        x = widen(round_to_bf16(x))
    matrix, wide = widen(weight).astype(np.float64), x.astype(np.float64)
    actual = multiply(pair.library, x, weight, None, bias)
    size = np.abs(wide) @ np.abs(matrix.T)
    assert (np.abs(actual - wide @ matrix.T - bias) <= x.shape[1] * 2.0**-24 * size + 1e-6 * np.abs(bias)).all()

    more = {"activation": activation if np.abs(x).max() < 1e3 else 1}
    if residual and not more["activation"]:
        more["residual"] = np.random.default_rng(len(x)).normal(size=(len(x), len(weight))).astype(np.float32)
    together = multiply(pair.library, x, weight, None, bias, **more)
    assert together.tobytes() == multiply(pair.plain, x, weight, None, bias, **more).tobytes()
    more = {name: value[-1:] if name == "residual" else value for name, value in more.items()}
    assert together[-1].tobytes() == multiply(pair.library, x[-1:], weight, None, bias, **more)[0].tobytes()


@pytest.mark.parametrize("name", ACTIVATION_CODES)
def test_activations_equal_their_definitions(name):
    wanted = {**ACTIVATIONS, "tanh": np.tanh}[name]
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    zeros, one = np.zeros((1, 16), np.float32), np.ones(len(x), np.float32)
    actual = multiply(best(), zeros, np.zeros((len(x), 16), np.int8), one, x, ACTIVATION_CODES[name])[0]

    assert np.abs(actual - wanted(x.astype(np.float64))).max() <= 3e-6


@given(
    st.integers(1, 40),
    st.integers(1, 70),
    st.integers(1, 3),
    st.sampled_from([16, 32, 64, 80]),
    st.floats(0.01, 8),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0, 9, 40]),
    st.integers(0, 2),
)
@example(9, 513, 1, 16, 1.0, False, False, None, 0)
@example(200, 530, 1, 16, 1.0, True, True, None, 3)
@example(9, 1100, 2, 16, 8.0, True, False, 700, 40)
@example(40, 1100, 1, 32, 1.0, False, True, 64, 2)
def test_attend_computes_scaled_dot_product_attention(
    pair, queries, keys, heads, depth, spread, biased, causal, window, portion
):
    """Also with a bias for each distance, causal, and in a window. The queries are at positions in any order.

    More keys than 512 come in blocks.
    """
    rng = np.random.default_rng(queries * 1000 + keys)
    q, k, v = (rng.normal(size=(n, heads * depth)).astype(np.float32) for n in (queries, keys, keys))
    q *= np.float32(spread / np.sqrt(depth))
    error = 3e-5
    if pair.library.c.swiftlet_floats_per_lane() == 2:  # bf16 inputs are exact, so that only intermediate values round
        for x in (q, k, v):
            x.view(np.uint32)[...] &= 0xFFFF0000
        error = np.abs(v).max() / 256
    positions = rng.integers(0, keys, queries)
    distances = np.arange(keys)[None, :] - positions[:, None]
    table = 3 * rng.normal(size=(heads, 2 * keys - 1 + pair.library.c.swiftlet_lanes())).astype(np.float32)
    out, reach = {library: np.empty_like(q) for library in pair}, -1 if window is None else window
    for library, to in out.items():
        first, bias, (at, last) = (q, k, v), np.ctypeslib.as_ctypes(table) if biased else None, (positions, to)
        pointers = *map(np.ctypeslib.as_ctypes, first), bias, causal, reach, np.ctypeslib.as_ctypes(at), portion
        assert library.c.swiftlet_attend(queries, keys, heads, depth, *pointers, np.ctypeslib.as_ctypes(last)) == 0

    for number, head in enumerate(np.split(np.arange(heads * depth), heads)):
        scores = q[:, head].astype(np.float64) @ k[:, head].T
        if biased:
            scores += table[number][keys - 1 + distances]
        if causal:
            scores[distances > 0] = -np.inf
        if window is not None:
            scores[np.abs(distances) > window // 2] = -np.inf
        shares = np.exp(scores - scores.max(1, keepdims=True))
        expected = shares @ v[:, head] / shares.sum(1, keepdims=True)
        assert np.abs(out[pair.library][:, head] - expected).max() <= error
    assert out[pair.library].tobytes() == out[pair.plain].tobytes()


# The least shares of hostile artifacts that each part of the code refuses, and that run.
PARTS = {"refused: ": 0.3, "refused by the engine": 0.01, "refused by C++": 0.01, "loaded": 0.25, "files": 0.04}
BATCH = Batch.of([encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(24, [23, 5, 5], 3)])


BF16 = [("mobilebert", "fill-mask", "bf16"), ("mpnet", "qa", "bf16")]
CASES = [*((*one, "int8") for one in NETWORKS), *BF16]
FIRST_CASES = [next(one for one in CASES if one[0] == name) for name in dict(NETWORKS)] + BF16
# Kinds of layers, and of all that a sequence may depend on.
DIFFERENT_LAYERS = ("mobilebert", "mpnet", "modernbert", "deberta_v2")
DIFFERENT = ("bert", "mobilebert", "gpt2", "modernbert", "deberta_v2")


@pytest.mark.parametrize(
    ("architecture", "task", "precision"),
    first([(*one, precision) for one in NETWORKS for precision in PRECISIONS], *FIRST_CASES),
)
def test_native_computes_the_rows_of_torch(architecture, task, precision):
    expected = torch_rows(network(architecture, task), BATCH)
    actual = np.concatenate(engine(architecture, task, precision).run(BATCH))

    assert actual.shape == expected.shape
    assert np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)) <= TOLERANCE[precision]


@pytest.mark.parametrize("left_out", ["keys", "queries"])
def test_native_computes_attention_with_one_kind_of_distances(left_out):
    given = folded("deberta_v2", "qa")

    def changed(step: Step) -> Step:
        if not isinstance(step, Attend) or step.relative is None:
            return step
        return replace(step, relative=replace(step.relative, **{left_out: None}))

    blocks = tuple(replace(block, steps=tuple(map(changed, block.steps))) for block in given.program.blocks)
    given = replace(given, program=replace(given.program, blocks=blocks))
    expected, rows = run_folded(given, BATCH), np.concatenate(Native(best(), given).run(BATCH))

    assert np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2)) <= TOLERANCE["int8"]


@pytest.mark.parametrize("name", VARIANTS)
def test_native_computes_networks_without_positions_and_with_windows(name):
    given = variant(name)
    expected, rows = run_folded(given, BATCH), Native(best(), given).run(BATCH)

    assert np.sqrt(np.mean((np.concatenate(rows) - expected) ** 2) / np.mean(expected**2)) <= TOLERANCE["int8"]
    for row, one in zip(rows, BATCH.encodings(), strict=True):
        assert row.tobytes() == Native(best(), given).run(Batch.of([one]))[0].tobytes()


@pytest.mark.parametrize(
    ("pair", "architecture", "task", "precision"),
    first(
        [(pair, *case) for pair in PAIRS for case in CASES],
        *(("own", *case) for case in FIRST_CASES),
        *((pair, *case) for pair in EMULATED for case in FIRST_CASES if case[0] in DIFFERENT_LAYERS),
    ),
    indirect=["pair"],
    scope="module",
)
def test_native_equals_the_reference_kernels_bit_by_bit(pair, architecture, task, precision):
    ours, theirs = (Native(library, folded(architecture, task), precision=precision) for library in pair)

    for row, its_row, one in zip(ours.run(BATCH), theirs.run(BATCH), BATCH.encodings(), strict=True):
        assert row.tobytes() == its_row.tobytes()
        assert row.tobytes() == ours.run(Batch.of([one]))[0].tobytes()


@pytest.mark.parametrize("precision", first(PRECISIONS, "int8"))
def test_native_with_adapters_equals_the_reference_kernels_bit_by_bit(pair, precision):
    config, own = CONFIGS["bert"] | {"hidden_act": "relu"}, weights(network("bert", "qa"))
    base, other = fold("bert", config, own), fold("bert", config, adapted(own, 20, 1))
    adapters = {}, without_adapter(other)[1]
    ours, theirs = (Native(library, base, precision=precision, adapters=adapters) for library in pair)
    batch = replace(BATCH, heads=np.arange(len(BATCH)) % 2)

    for row, its_row, one in zip(ours.run(batch), theirs.run(batch), batch.encodings(), strict=True):
        assert row.tobytes() == its_row.tobytes()
        assert row.tobytes() == ours.run(Batch.of([one]))[0].tobytes()


@st.composite
def encodings(draw: st.DrawFn):
    length = draw(st.integers(1, POSITIONS))
    focus = draw(st.lists(st.integers(0, length - 1), max_size=2 * length))
    return encoding(length, focus, draw(st.integers(0, 1000)))


@pytest.mark.parametrize(
    ("architecture", "precision"),
    first(itertools.product(CONFIGS, PRECISIONS), *((name, "int8") for name in DIFFERENT)),
)
@given(batch=st.lists(encodings(), min_size=1, max_size=7))
def test_native_computes_a_row_in_a_batch_as_alone_bit_by_bit(architecture, precision, batch):
    network = engine(architecture, "qa", precision)
    together = network.run(Batch.of(batch))

    assert [row.shape for row in together] == [(len(one.focus), 2) for one in batch]
    for one, row in zip(batch, together, strict=True):
        (alone,) = network.run(Batch.of([one]))
        assert row.tobytes() == alone.tobytes()


@pytest.mark.parametrize("length", [1, 8])
@pytest.mark.parametrize("count", [49, 97, 130])
def test_native_computes_batches_of_several_blocks(count, length):
    """A block is the rows that pass through a layer together."""
    network = engine("mobilebert", "fill-mask")
    many = [encoding(length, [0], seed) for seed in range(count)]
    rows = network.run(Batch.of(many))

    for which in (0, 47, 48, count - 1):
        assert rows[which].tobytes() == network.run(Batch.of([many[which]]))[0].tobytes()


def test_native_computes_some_positions_as_all_positions():
    for architecture in CONFIGS:
        network = engine(architecture, "qa")
        one = encoding(20, range(20), 7)
        (every,) = network.run(Batch.of([one]))
        one = encoding(20, [19, 0, 4, 4], 7)
        (some,) = network.run(Batch.of([one]))

        assert some.tobytes() == every[[19, 0, 4, 4]].tobytes()


def test_native_runs_in_several_threads_at_once():
    network = engine("albert", "fill-mask")
    batches = [Batch.of([encoding(n, [0, n - 1], seed) for n in (1 + seed, 30, 2)]) for seed in range(9)]
    alone = [np.concatenate(network.run(batch)).tobytes() for batch in batches]
    wrong, start = [], threading.Barrier(4)

    def work(first: int) -> None:
        start.wait()
        for i in range(60):
            which = (first + i) % len(batches)
            if np.concatenate(network.run(batches[which])).tobytes() != alone[which]:
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_native_allocates_nothing_for_a_batch_of_known_size():
    network = engine("bert", "classify")
    sizes = []
    for _ in range(3):
        network.run(BATCH)
        sizes.append(best().c.swiftlet_workspace_bytes())
    network.run(Batch.of([encoding(3, [0], 1)]))

    assert sizes[0] == sizes[1] == sizes[2] == best().c.swiftlet_workspace_bytes() > 0


def changed(**changes) -> Batch:
    return replace(BATCH, **{name: change(getattr(BATCH, name).copy()) for name, change in changes.items()})


def set_item(at: int, value: int):
    def change(array):
        array[at] = value
        return array

    return change


INVALID_BATCHES = {
    "an id out of range": changed(input_ids=set_item(5, VOCABULARY)),
    "a head that is not there": changed(heads=set_item(0, 1)),
    "a negative id": changed(input_ids=set_item(5, -1)),
    "an id beyond 32 bits": changed(input_ids=set_item(5, 2**40)),
    "a token type out of range": changed(token_type_ids=set_item(5, 2)),
    "a focus position after the sequence": changed(focus=set_item(0, 11)),
    "a focus position before the sequence": changed(focus=set_item(0, -1)),
    "an empty sequence": changed(offsets=set_item(1, 0)),
    "offsets that fall": changed(offsets=set_item(1, 30)),
    "offsets that do not start at 0": changed(offsets=set_item(0, 1)),
    "offsets that end too early": changed(offsets=set_item(3, 35)),
    "offsets that end too late": changed(offsets=set_item(3, 37)),
    "offsets that overflow": changed(offsets=set_item(1, -(2**63))),
    "focus offsets that fall": changed(focus_offsets=set_item(1, 6)),
    "an offset too few": changed(offsets=lambda array: array[:-1]),
    "a token type too few": changed(token_type_ids=lambda array: array[:-1]),
    "a negative top_k": changed(top_k=set_item(1, -1)),
    "a huge top_k": changed(top_k=set_item(1, 2**62)),
    "a top_k too many": changed(top_k=lambda array: np.append(array, 1)),
    "a candidate out of range": changed(
        candidates=lambda _: np.array([2]), candidate_offsets=lambda _: np.array([0, 0, 1, 1])
    ),
    "a negative candidate": changed(
        candidates=lambda _: np.array([-1]), candidate_offsets=lambda _: np.array([0, 1, 1, 1])
    ),
    "a candidate of no sequence": changed(candidates=lambda _: np.array([1])),
    "candidate offsets that fall": changed(candidate_offsets=set_item(1, 1)),
    "fewer targets than focus positions": changed(
        candidates=lambda _: np.array([0]), candidate_offsets=lambda _: np.array([0, 1, 1, 1])
    ),
    "more candidates than outputs": changed(
        top_k=set_item(1, 1),
        candidates=lambda _: np.array([0] * 3),
        candidate_offsets=lambda _: np.array([0, 0, 3, 3]),
    ),
    "a candidate offset too few": changed(candidate_offsets=lambda array: array[:-1]),
    "nothing to attend to": changed(attended=set_item(0, 0)),
    "more to attend to than there is": changed(attended=lambda array: array + 1),
    "no sequences": Batch(*[np.zeros(int(name.endswith("offsets")), np.int64) for name in vars(BATCH)]),
    "no offsets": Batch(*[np.zeros(0, np.int64)] * len(vars(BATCH))),
    "a sequence that is too long": Batch.of([encoding(POSITIONS + 1, [0], 1)]),
}


@pytest.mark.parametrize("name", INVALID_BATCHES)
def test_native_rejects_an_invalid_batch(name):
    with pytest.raises(ValueError, match="the batch is invalid"):
        engine("mobilebert", "qa").run(INVALID_BATCHES[name])


@given(st.integers(1, 200), st.integers(1, 100), st.booleans(), st.lists(st.integers(0, 199), max_size=12, unique=True))
def test_top_k_equals_numpy(pair, outputs, most, coarse, among):
    row = np.random.default_rng(outputs).normal(0, 5, outputs).astype(np.float32)
    row = row.round() if coarse else row
    columns = np.array([column for column in among if column < outputs], np.int64)
    expected = rank(row[None], most, columns)[0]
    found = []
    for library in pair:
        x = np.pad(row, (0, -outputs % library.c.swiftlet_lanes()), constant_values=np.nan)
        out = np.full_like(expected, np.nan)
        pointers = [np.ctypeslib.as_ctypes(array) if len(array) else None for array in (columns, x, out)]
        library.c.swiftlet_top_k(pointers[1], outputs, most, pointers[0], len(columns), pointers[2])
        found.append(out)
    total, largest, places = (part[0] for part in Ranking.of(found[0][None]))

    assert total[0] == pytest.approx(expected[0], abs=1e-5)
    assert largest.tolist() == Ranking.of(expected[None]).largest[0].tolist()
    assert largest.tolist() == row[places].tolist()
    assert len(set(places.tolist())) == len(places)
    assert found[0].tobytes() == found[1].tobytes()


FAMILIES = (("bert", "classify"), ("mobilebert", "fill-mask"), ("gpt2", "score"), ("mpnet", "qa"))  # all kinds of steps


def places_of(network: Folded) -> list[tuple[str, int]]:
    """Returns a place in every vector, and in the bias of every product."""
    arrays = {**network.vectors, **{name: product.bias for name, product in network.products.items()}}
    # The middle of a position bias is that of the distance 0.
    return [(name, POSITIONS - 1 if name == "position_bias" else 7 % array.size) for name, array in arrays.items()]


def poisoned(network: Folded, name: str, at: int, wrong: float) -> Folded:
    """Returns a network with a number that is not finite."""
    group = "products" if name in network.products else "vectors"
    given = vars(network)[group]
    array = np.array(given[name].bias if group == "products" else given[name], np.float32, order="C")
    array.reshape(-1)[at] = wrong
    return replace(
        network, **{group: {**given, name: Product(given[name].matrix, array) if group == "products" else array}}
    )


@pytest.mark.parametrize(
    ("pair", "precision"),
    first(itertools.product(PAIRS, PRECISIONS), ("own", "int8"), ("own", "bf16"), (INTEL[0], "int8")),
    indirect=["pair"],
    scope="module",
)
@pytest.mark.parametrize("wrong", first([np.nan, np.inf], np.nan))
def test_number_that_is_not_finite_reaches_the_outputs_from_every_step(pair, wrong, precision, monkeypatch):
    """As if memory had been damaged: loading refuses such parameters. Every position that is read is affected."""
    monkeypatch.setattr(native, "finite", partial(np.ascontiguousarray, dtype=np.float32))
    batch = Batch.of([encoding(11, [0, 3], 1), encoding(24, [23], 2)])
    # Emulated kernels are slow. MobileBERT and MPNet have all that depends on the kernel, and their layers are alike.
    own = pair.library is best()
    families = FAMILIES if own else FAMILIES[1::2] if precision == "int8" else FAMILIES[1:2]
    for architecture, task in families:
        network = folded(architecture, task)
        bounded = {step.product for step in network.program if isinstance(step, Multiply) and step.activation == "tanh"}
        for name, at in places_of(network):
            if wrong == np.inf and name in bounded:
                continue  # the hyperbolic tangent of infinity is 1
            if not own and "layers.0." in name:
                continue
            engine = Native(pair.library, poisoned(network, name, at, wrong), precision=precision)
            for row in engine.run(batch):
                assert not np.isfinite(row).all(1).any(), (architecture, name)
            engine.close()


def test_sequence_with_a_number_that_is_not_finite_changes_no_other(monkeypatch):
    """The position table is damaged at position 20, which only long sequences have."""
    monkeypatch.setattr(native, "finite", partial(np.ascontiguousarray, dtype=np.float32))
    network = folded("bert", "qa")
    batch = Batch.of([encoding(11, [0, 3], 1), encoding(24, [0, 23], 2), encoding(20, [19], 3)])
    sound = Native(best(), network).run(batch)
    model = EngineModel(Native(best(), poisoned(network, "embeddings.position", 20 * 64, np.nan)), [2])
    first, second, third = run_batch(model, batch)

    assert (first.tobytes(), third.tobytes()) == (sound[0].tobytes(), sound[2].tobytes())
    assert second.code == "invalid_engine_output"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 31, 40])
def test_row_with_a_number_that_is_not_finite_gives_nan(pair, wrong, at):
    x = np.ones((3, 48), np.float32)
    x[1, at] = wrong
    weight, one = np.ones((16, 48), np.int8), np.ones(16, np.float32)
    for matrix in ((weight, one), (round_to_bf16(weight), None)):
        out = multiply(pair.library, x, *matrix, one, ACTIVATION_CODES["relu"])

        assert np.isnan(out[1]).all()
        assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5, 82])
def test_top_k_reports_numbers_that_are_not_finite(wrong, at):
    row, out = np.ones(96, np.float32), np.empty(3, np.float32)
    row[at] = wrong
    best().c.swiftlet_top_k(np.ctypeslib.as_ctypes(row), 83, 1, None, 0, np.ctypeslib.as_ctypes(out))

    assert not np.isfinite(out[0])


@pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))
def test_native_selects_top_k_of_the_same_outputs(architecture, task):
    network = engine(architecture, task)
    one, other = encoding(11, [0, 3, 10], 1), encoding(24, [23, 5, 5], 3)
    outputs = network.run(Batch.of([one]))[0].shape[1]
    among = np.arange(outputs)[::-2].copy()
    batch = Batch.of(
        [one, Ranked(**vars(one), top_k=5, candidates=NOTHING), other, Ranked(**vars(other), top_k=2, candidates=among)]
    )
    rows = network.run(batch)

    assert rows[0].tobytes() == network.run(Batch.of([one]))[0].tobytes()
    assert rows[2].tobytes() == network.run(Batch.of([other]))[0].tobytes()
    np.testing.assert_allclose(rows[1], rank(rows[0], 5, NOTHING), rtol=1e-5)
    np.testing.assert_allclose(rows[3], rank(rows[2], 2, among), rtol=1e-5)


@pytest.mark.parametrize("architecture", first(CONFIGS, "bert", "gpt2", "mobilebert"))
def test_native_scores_the_same_outputs(architecture):
    """Beside other sequences, with more targets than the network has outputs, and the same bits alone."""
    network = engine(architecture, "fill-mask")
    plain, other = encoding(POSITIONS, [*range(POSITIONS)] * 3, 1), encoding(5, [2], 3)
    scored = Scored(**vars(plain), targets=np.random.default_rng(4).integers(0, VOCABULARY, len(plain.focus)))
    whole, found, _ = network.run(Batch.of([plain, scored, other]))

    assert found.shape == (len(plain.focus), 1)
    np.testing.assert_allclose(found, log_probabilities(whole, scored.targets), atol=1e-5)
    assert found.tobytes() == network.run(Batch.of([scored]))[0].tobytes()


def test_native_rows_do_not_share_memory():
    first, second, _ = engine("bert", "fill-mask").run(BATCH)

    assert not np.shares_memory(first, second)
    assert first.base is None


def test_native_runs_the_largest_batch_of_its_cost():
    cost = Native.cost
    rows = engine("bert", "qa").run(Batch.of([encoding(cost.max_tokens // cost.max_rows, [0], n) for n in range(64)]))

    assert len(rows) == cost.max_rows


def test_quantise_rounds_weights_by_at_most_half_a_step():
    weight = np.random.default_rng(3).normal(size=(5, 48)).astype(np.float32)
    weight[1] = 0
    packed, scale = quantise(weight)

    assert np.abs(packed).max() == 127
    assert (np.abs(packed * scale[:, None] - weight) <= scale[:, None] * 0.5001).all()


def test_native_falls_back_to_onnx_runtime_without_a_library(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_kernel_selection, "LIBRARIES", tmp_path)
    (tmp_path / "avx2.so").write_text("not a library")
    artifact = open_artifact(BUNDLED / "mobilebert-sst2")
    hosted, _ = host_model([artifact], "native")

    assert isinstance(hosted.engine, RaggedOnnx)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages == [
        "mobilebert-sst2 runs on onnx_cpu, because the native engine cannot run it: no kernel is compiled for this CPU"
    ]


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="only Linux lists the features of an x86-64 CPU"
)
@pytest.mark.parametrize(
    ("kernel", "flags"),
    [
        ("avx2", {"avx2", "fma"}),
        ("avxvnni", {"avx2", "fma", "avx_vnni"}),
        ("avx512vnni", AVX512),
        ("avx512bf16", {*AVX512, "avx512_bf16"}),
        ("amx", {*AVX512, "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}),
    ],
)
def test_kernels_are_supported_if_the_cpu_has_their_instructions(kernel, flags):
    (listed,) = {line for line in Path("/proc/cpuinfo").read_text("ascii").splitlines() if line.startswith("flags")}

    library = Library(_kernel_selection.LIBRARIES / f"{kernel}.so")
    assert library.supported == (flags <= set(listed.split()))


def test_best_prefers_the_kernel_of_the_environment_variable(monkeypatch):
    """A kernel that this CPU cannot run, and an unknown name, are ignored."""
    own = best().kernel
    for asked in (*_kernel_selection.KERNELS, "unknown"):
        monkeypatch.setenv(_kernel_selection.CHOICE, asked)
        library = _kernel_selection._library(asked)  # kernels of other platforms are not compiled
        runs = library is not None and library.supported
        assert _kernel_selection.best().kernel == (asked if runs else own)


@pytest.mark.parametrize(
    ("cpu", "has"), [("cortex-a57", []), ("neoverse-n1", ["neon"]), ("max", ["neon", "neon_i8mm"])]
)
@pytest.mark.parametrize("kernel", first(EXTENSIONS, "neon_i8mm"))
def test_arm_kernels_are_supported_if_the_cpu_has_their_instructions(arm, kernel, cpu, has):
    with Remote(emulator(), "-cpu", cpu, str(arm(kernel))) as library:
        assert (library.kernel, library.supported) == (kernel, kernel in has)


def test_native_falls_back_to_onnx_runtime_for_an_unsupported_artifact(tmp_path, caplog):
    best()
    hosted, _ = host_model([make_artifact(tmp_path, "qa")], "native")

    assert isinstance(hosted.engine, PaddedOnnx)
    assert caplog.messages == [
        "tiny-qa runs on onnx_cpu, because the native engine cannot run it: the precision is fp32"
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in BUNDLED.glob("*/")))
def test_native_serves_the_bundled_models(name):
    kernel = best().kernel
    hosted, deviation = host_model([open_artifact(BUNDLED / name)], "native")

    assert hosted.engine.title == f"native ({kernel})"
    assert deviation > 0


WIDE = np.zeros((192, 80), np.float32)
WRONG_PARAMETERS = {
    "no words of this width": {"words": np.zeros((VOCABULARY, 80), np.float32)},
    "infinite words": {"words": np.full((VOCABULARY, 64), np.inf, np.float32)},
    "a product with fewer outputs": {"layers.0.key_value": Product(WIDE[:64, :64], np.zeros(64, np.float32))},
    "a product with more inputs": {"layers.0.feed_forward.0.inner": Product(WIDE, np.zeros(192, np.float32))},
    "a short bias": {"layers.0.output": Product(WIDE[:64, :64], np.zeros(32, np.float32))},
    "a NaN in a bias": {"layers.0.output": Product(WIDE[:64, :64], np.full(64, np.nan, np.float32))},
    "a narrow table": {"embeddings.position": np.zeros((POSITIONS, 48), np.float32)},
    "a NaN in a table": {"embeddings.position": np.full((POSITIONS, 64), np.nan, np.float32)},
    "a short norm": {"embeddings.norm.weight": np.zeros(48, np.float32)},
    "more outputs": {"outputs": 3},
    "fewer outputs": {"outputs": 1},
}


@pytest.mark.parametrize("precision", first(PRECISIONS, "int8"))
@pytest.mark.parametrize("name", WRONG_PARAMETERS)
def test_native_refuses_parameters_that_do_not_fit_the_program(name, precision):
    """Also without the checks of folding."""
    given, ((key, value),) = folded("bert", "qa"), WRONG_PARAMETERS[name].items()
    group = "products" if key in given.products else "vectors"
    change = {key: value} if key in ("words", "outputs") else {group: {**vars(given)[group], key: value}}

    with pytest.raises(ValueError, match=r"contradict each other|not finite"):
        Native(best(), replace(given, **change), precision=precision)


def test_kernels_refuse_an_unknown_precision(monkeypatch):
    for number in (-1, 2, 1 << 30):
        monkeypatch.setitem(PRECISIONS, "int8", number)
        with pytest.raises(ValueError, match="contradict each other"):
            Native(best(), folded("bert", "qa"))


def step_of(kind: type[Any], n: int = 0) -> Any:
    """Returns the nth step of a kind in the program of `folded("bert", "qa")`."""
    return [step for step in folded("bert", "qa").program if isinstance(step, kind)][n]


def without(steps: tuple[Step, ...], *kinds: type[Any]) -> tuple[Step, ...]:
    return tuple(step for step in steps if not isinstance(step, kinds))


def with_distances(steps: tuple[Step, ...], rows: str, keys: str | None) -> tuple[Step, ...]:
    relative = Relative(rows, keys, None)
    return tuple(replace(step, relative=relative) if isinstance(step, Attend) else step for step in steps)


QUERY = Place("query", 0, 64)
DISTANCES = np.arange(2 * POSITIONS - 1, dtype=np.float32)
WRONG_PROGRAMS: dict[str, Callable[[tuple[Step, ...]], tuple[Step, ...]]] = {
    "no steps of a layer": lambda _: (),
    "no read": lambda steps: without(steps, Read),
    "two reads": lambda steps: (*steps, Read("hidden", "hidden")),
    "a read of another width": lambda steps: (*without(steps, Read), Read("widened", "hidden")),
    "a value that nothing wrote": lambda steps: (Norm("normed", "inner", "embeddings.norm", 0.1), *steps),
    "a value of all tokens behind the read": lambda steps: (
        *steps,
        Multiply("widened", "key_value", "layers.0.output"),
    ),
    "no keys": lambda steps: tuple(step for step in steps if getattr(step, "out", None) != "key_value"),
    "keys behind the read": lambda steps: (*[s for s in steps if isinstance(s, Read)], *without(steps, Read)),
    "keys of another block": lambda steps: (replace(step_of(Attend), query=QUERY), *steps),
    "3 heads": lambda steps: tuple(replace(s, heads=3) if isinstance(s, Attend) else s for s in steps),
    "8 heads": lambda steps: tuple(replace(s, heads=8) if isinstance(s, Attend) else s for s in steps),
    "no head": lambda steps: tuple(replace(s, heads=0) if isinstance(s, Attend) else s for s in steps),
    "columns beyond the end": lambda steps: tuple(
        replace(s, value=Place("key_value", 128, 64)) if isinstance(s, Attend) else s for s in steps
    ),
    "columns before the start": lambda steps: tuple(
        replace(s, value=Place("key_value", -64, 64)) if isinstance(s, Attend) else s for s in steps
    ),
    "attention in place": lambda steps: tuple(replace(s, out="query") if isinstance(s, Attend) else s for s in steps),
    "a residual that is too narrow": lambda steps: tuple(
        replace(s, residual=Place("hidden", 16, 48)) if isinstance(s, Multiply) and s.residual else s for s in steps
    ),
    "an activation with a residual": lambda steps: tuple(
        replace(s, activation="gelu") if isinstance(s, Multiply) and s.residual else s for s in steps
    ),
    "a gain without a residual": lambda steps: tuple(
        replace(s, gain="embeddings.norm.bias") if isinstance(s, Multiply) else s for s in steps
    ),
    "a product in place": lambda steps: tuple(
        replace(s, out="attended") if isinstance(s, Multiply) and s.x == "attended" else s for s in steps
    ),
    "a negative window": lambda steps: tuple(replace(s, window=-2) if isinstance(s, Attend) else s for s in steps),
    "an infinite epsilon": lambda steps: tuple(replace(s, epsilon=np.inf) if isinstance(s, Norm) else s for s in steps),
    "a look-up behind the read": lambda steps: (*steps, step_of(LookUp)),
    "distances of another count": lambda steps: with_distances(steps, "embeddings.norm.bias", "turns"),
    "distances out of order": lambda steps: with_distances(steps, "rising", "tables"),
    "distances beyond the table": lambda steps: with_distances(steps, "falling", "embeddings.norm.bias"),
    "distances of another width": lambda steps: with_distances(steps, "falling", "odd table"),
    "distances without a table": lambda steps: with_distances(steps, "falling", None),
    "a gate of another width": lambda steps: (*steps, Gate("inner", "widened", "gelu")),
    "a gate in place": lambda steps: (*steps, Gate("widened", "widened", "gelu")),
    "a rotation beyond the end": lambda steps: (*steps, Rotate(Place("query", 32, 64), "turns", 2)),
    "a rotation of narrow heads": lambda steps: (*steps, Rotate(QUERY, "turns", 4)),
    "a rotation of no heads": lambda steps: (*steps, Rotate(QUERY, "turns", 0)),
    "a rotation of what nothing wrote": lambda steps: (Rotate(Place("inner", 0, 64), "turns", 2), *steps),
    "a rotation of rows before the read": lambda steps: (*steps, Rotate(Place("key_value", 0, 64), "turns", 2)),
    "a short table of turns": lambda steps: (*steps, Rotate(QUERY, "embeddings.norm.bias", 2)),
}


@pytest.mark.parametrize("name", WRONG_PROGRAMS)
def test_native_refuses_a_program_that_contradicts_itself(name):
    given = folded("bert", "qa")
    *first, layer, head = given.program.blocks
    assert any(isinstance(step, Read) for step in layer.steps)
    changed = replace(layer, steps=WRONG_PROGRAMS[name](layer.steps))
    program = replace(
        given.program, blocks=(*first, changed, head), widths={**given.program.widths, "inner": 64, "normed": 64}
    )
    vectors = given.vectors | {
        "turns": np.zeros((POSITIONS, 32), np.float32),
        "odd table": np.zeros((2 * POSITIONS, 63), np.float32),
        "tables": np.zeros((2 * POSITIONS, 64), np.float32),
        "rising": DISTANCES,
        "falling": DISTANCES[::-1],
    }

    with pytest.raises(ValueError, match="contradict each other"):
        Native(best(), replace(given, program=program, vectors=vectors))


def test_each_status_of_the_kernels_has_a_message():
    (names,) = re.findall(r"enum Status : int \{ (.*) \};", (_kernel_selection.LIBRARIES / "api.h").read_text())
    statuses = {number: name for number, name in enumerate(names.split(", ")) if name not in ("ok", "wrong_sum")}
    assert native.ERRORS.keys() == statuses.keys()
    for number, name in statuses.items():
        with pytest.raises({"no_memory": MemoryError, "failed": RuntimeError}.get(name, ValueError)) as error:
            native._check(number)
        assert str(error.value) == native.ERRORS[number]


def test_kernels_refuse_more_outputs_than_they_can_count():
    """As soon as a model is created: `swiftlet_outputs` has no status to return."""
    given = folded("bert", "qa")
    *blocks, head = given.program.blocks
    widths = {"wide": 1 << 24, "wider": 1 << 24}
    steps = *head.steps, *(replace(head.steps[-1], out=name) for name in widths)
    changed = replace(head, steps=steps)
    program = replace(
        given.program, blocks=(*blocks, changed), widths={**given.program.widths, **widths}, results=tuple(widths)
    )
    numbers = _program_numbers.program_numbers(replace(given, program=program), Parameters.of(given))
    status = best().c.swiftlet_create(0, numbers, numbers.size, 0, -1, 0, ctypes.byref(ctypes.c_void_p()))
    assert native.ERRORS[status] == "the network's sizes contradict each other"


def test_native_refuses_more_distances_than_a_block_of_keys(monkeypatch):
    given = folded("deberta_v2", "qa")
    tables = {name: np.zeros((513, 96), np.float32) for name in given.vectors if name.startswith("layers.0.relative")}
    changed = replace(given, vectors=given.vectors | tables)
    with pytest.raises(FoldingError, match="its table of distances has 513 rows, more than 512"):
        Native(best(), changed)
    monkeypatch.setattr(_program_numbers, "MOST_DISTANCES", 513)
    with pytest.raises(ValueError, match="contradict each other"):
        Native(best(), changed)


def test_columns_of_a_value_that_another_segment_wrote_are_kept():
    """The second block fills the rest of a value, for more rows than a block of rows has."""
    words = np.random.default_rng(0).standard_normal((9, 16)).astype(np.float32)
    twice = Product(np.tile(np.eye(16, dtype=np.float32), 2), np.zeros(16, np.float32))
    first = LookUp(Place("x", 0, 16), WORDS, "word")
    rest = LookUp(Place("x", 16, 16), WORDS, "word"), Multiply("y", "x", "twice"), Read("y", "y")
    program = Program((Block((first,)), Block(rest)), {"x": 32, "y": 16}, ("y",))
    engine = Native(best(), Folded(program, 16, 300, words, {"twice": twice}))
    ids = np.random.default_rng(1).integers(0, 9, 200)
    (rows,) = engine.run(Batch.of([Encoding(ids, np.zeros(200, np.int64), np.arange(200))]))

    assert np.abs(rows - 2 * words[ids]).max() < 0.1


def test_native_refuses_more_inputs_than_its_sums_hold(monkeypatch):
    """With the largest activations and weights, one input more would overflow."""
    library = best()
    highest = library.c.swiftlet_lowest() + library.c.swiftlet_levels()
    most = max(highest + (library.c.swiftlet_levels() > 255), -library.c.swiftlet_lowest())
    assert library.max_inputs * 127 * most < 1 << 31 <= (library.max_inputs + 1) * 127 * most

    monkeypatch.setattr(Library, "max_inputs", 191)
    with pytest.raises(FoldingError, match=r"a product has 192 inputs, more than the 191"):
        Native(library, folded("bert", "qa"))


def test_native_passes_over_a_library_of_another_version(monkeypatch, caplog):
    best()
    _kernel_selection._warn_of_version.cache_clear()
    monkeypatch.setattr(_kernel_library, "INTERFACE", _kernel_library.INTERFACE + 1)

    assert _kernel_selection.select().library is None
    assert "was compiled for another version of Swiftlet" in caplog.messages[0]


FUZZ = """
import pickle, sys
import numpy as np
from pathlib import Path
from swiftlet_models.folding import fold
from swiftlet_models.encodings import Encoding
from swiftlet_serve.engines._program_numbers import without_adapter
from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.engines.native import Native
from swiftlet_serve.types import Batch
from tests.support.adapters import adapted

def encoding(k):
    focus = draw.integers(0, k, draw.integers(0, 2 * k))
    return Encoding(draw.integers(0, words, k), draw.integers(0, 2, k), focus, head=int(draw.integers(0, 2)))

networks = pickle.loads(Path(sys.argv[1]).read_bytes())
for path, rounds in zip(sys.argv[2::2], map(int, sys.argv[3::2]), strict=True):
    library, draw, refused = Library(Path(path)), np.random.default_rng(7), 0
    for architecture, config, weights, precision in networks:
        base, other = (without_adapter(fold(architecture, config, own)) for own in (weights, adapted(weights, 20, 1)))
        engine = Native(library, base[0], precision=precision, adapters=[{}, other[1]])
        words = config["vocab_size"]
        for n in range(rounds):
            lengths = draw.integers(1, 41, draw.integers(1, 5))
            batch = Batch.of([encoding(k) for k in lengths])
            for array in batch.arrays:
                if n % 2 and len(array) and draw.random() < 0.3:
                    wrong = [-1, 0, 1, 7, 40, words, 2**31, -2**63, 2**63 - 1]
                    array[draw.integers(len(array))] = draw.choice(wrong)
            try:
                engine.run(batch)
            except ValueError:
                refused += 1
        engine.close()
    assert rounds / 3 < refused <= 1.5 * rounds, refused  # every second batch may be wrong, in three networks
    print(f"{path} passed")
"""


@pytest.fixture(scope="module")
def own_sanitized(tmp_path_factory) -> Path:
    return sanitized(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("own", "emulated"), [(12, 4)])
def test_native_passes_the_sanitizers(own_sanitized, tmp_path, own, emulated):
    """Runs valid and corrupted batches in kernels under the sanitizers: those of this CPU, and those with tiles.

    The process reads the networks, because torch is slow under the sanitizers.
    """
    tiles, networks = plain_tiles(tmp_path, *SANITIZE), tmp_path / "networks"
    kinds = ("albert", "classify", "int8"), ("mobilebert", "fill-mask", "bf16"), ("bert", "qa", "bf16")
    given = [(name, CONFIGS[name], weights(network(name, task)), precision) for name, task, precision in kinds]
    networks.write_bytes(pickle.dumps(given))
    result = subprocess.run(
        [sys.executable, "-c", FUZZ, str(networks), str(own_sanitized), str(own), str(tiles), str(emulated)],
        env=sanitizer_environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )

    assert result.stdout == f"{own_sanitized} passed\n{tiles} passed\n", result.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [500])
def test_native_refuses_or_runs_hostile_artifacts(own_sanitized, count):
    """Without a sanitizer's report, an undocumented exception, a hang, or memory out of proportion."""
    report = fuzz(own_sanitized, first=0, count=count)

    assert report.failures == []
    assert report.count == count
    shares = {part: sum(n for name, n in report.outcomes.items() if part in name) / count for part in PARTS}
    assert all(share > PARTS[part] for part, share in shares.items()), shares
