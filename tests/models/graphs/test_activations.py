"""Tests of fixed ranges of activations: which products get one, the file, and the graph that uses them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from swiftlet_models.graphs.activations import Range, Seen, choose, from_arrays, to_arrays
from swiftlet_models.graphs.ragged import in_ranges, in_signed, of_int8, ragged
from swiftlet_models.tensors import WeightsError
from swiftlet_models.weights import read_weights, save_weights
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx, adds_in_32_bits
from swiftlet_serve.offline.activations import find_ranges
from swiftlet_serve.types import Batch
from tests.support.checkpoints import relative_error
from tests.support.native_kernels import encoding, folded, network, torch_rows

TEXTS = [encoding(length, range(length), length) for length in (9, 1, 33, 40, 2)]
DRAW = np.random.default_rng(0)
WEIGHT = DRAW.normal(size=(32, 64)).astype(np.float32)
ROWS = DRAW.normal(size=(500, 64)).astype(np.float32)


def seen(x: np.ndarray) -> Seen:
    return Seen.of(x.astype(np.float32), 500)


def test_rows_of_equal_size_share_a_range():
    fixed = choose(seen(ROWS), WEIGHT)

    assert fixed is not None
    assert (fixed.divisor == 1).all()
    np.testing.assert_allclose(fixed.bounds, [ROWS.min(), ROWS.max()])


def test_columns_of_different_sizes_are_divided():
    columns = np.where(np.arange(64) % 16, 1, 60)
    fixed = choose(seen(ROWS * columns), WEIGHT / columns)

    assert fixed is not None
    assert fixed.divisor[::16].min() > 5 * fixed.divisor[1::16].max()


def test_rows_of_different_sizes_keep_a_scale_for_each_token():
    assert choose(seen(ROWS * np.geomspace(1, 1000, 500)[:, None]), WEIGHT) is None


def test_inputs_that_are_never_negative_get_every_level():
    fixed = choose(seen(np.abs(ROWS)), WEIGHT)

    assert fixed is not None
    assert fixed.zero == 0
    assert fixed.step == pytest.approx(np.abs(ROWS).max() / 255)


def test_inputs_of_zeros_have_a_range():
    fixed = choose(seen(ROWS * 0), WEIGHT)

    assert fixed is not None
    assert not fixed.rounded(ROWS[:2] * 0).any()


@pytest.mark.skipif(not adds_in_32_bits(), reason="this CPU saturates products")
@pytest.mark.parametrize("architecture", ["albert", "mobilebert", "bert"])
def test_graph_with_ranges_computes_the_rows_of_torch_and_rows_as_alone(architecture, tmp_path):
    """Of ALBERT, several layers share a product, and one of its inputs' ranges holds for all of them."""
    folded_network = folded(architecture, "qa")
    found, products = find_ranges(folded_network, TEXTS)
    save_weights(tmp_path / "ranges", to_arrays(found), "fp32")
    ranges = from_arrays(read_weights(tmp_path / "ranges"), folded_network)
    engine = RaggedOnnx(folded_network, of_int8(folded_network, signed=True, ranges=ranges), threads=1)
    rows = engine.run(Batch.of(TEXTS))
    expected = torch_rows(network(architecture, "qa"), Batch.of(TEXTS))

    assert products // 2 < len(ranges) <= products
    assert relative_error(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(expected)) <= 0.07
    for text, row in zip(TEXTS, rows, strict=True):
        assert relative_error(torch.from_numpy(row), torch.from_numpy(engine.run(Batch.of([text]))[0])) <= 1e-6


def test_only_products_without_a_range_look_for_the_largest_number():
    network_ = folded("bert", "qa")
    found, products = find_ranges(network_, TEXTS)
    names = list(found)[1:]
    graphs = (ragged(network_, multiply) for multiply in (in_signed, in_ranges({name: found[name] for name in names})))
    counts = [[n.op_type for n in onnx.load_from_string(graph).graph.node].count("ReduceMax") for graph in graphs]

    assert counts == [products, products - len(names)]


@pytest.mark.parametrize(
    ("name", "divisor", "bounds"),
    [
        ("layers.9.output", np.ones(32), [-1, 1]),
        ("layers.0.output", np.ones(7), [-1, 1]),
        ("layers.0.output", np.zeros(32), [-1, 1]),
        ("layers.0.output", np.ones(32), [0.5, 1]),
        ("layers.0.output", np.ones(32), [0, 0]),
        ("layers.0.output", np.ones(32), [-1, 0, 1]),
        ("layers.0.output", np.full(32, np.nan), [-1, 1]),
    ],
)
def test_ranges_that_do_not_fit_are_refused(name, divisor, bounds):
    network_ = folded("bert", "qa")
    width = network_.product("layers.0.output").matrix.shape[1]
    divisor = np.resize(divisor, width) if len(divisor) == 32 else divisor
    ranges = {name: Range(divisor.astype(np.float32), np.array(bounds, np.float32))}

    with pytest.raises(WeightsError):
        from_arrays(to_arrays(ranges), network_)


def test_ranges_without_a_part_are_refused():
    arrays = to_arrays({"layers.0.output": Range(np.ones(32, np.float32), np.array([-1, 1], np.float32))})
    for name in arrays:
        with pytest.raises(WeightsError):
            from_arrays({other: array for other, array in arrays.items() if other != name}, folded("bert", "qa"))
