"""The baselines: each computes the network's rows."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from loadtest import baseline_fastapi_openvino
from loadtest.baseline_fastapi_openvino import MULTIPLE, padded
from swiftlet_models.artifact import Artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve.benchmark import networks
from swiftlet_serve.benchmark.plan import batches_of_similar_length
from swiftlet_serve.engines.onnx_cpu import PaddedOnnx
from swiftlet_serve.types import Batch
from tests.support import networks as small_networks


def sequence(length: int) -> Batch:
    ids = np.arange(1, length + 1)
    return Batch.of([Encoding(ids, np.zeros_like(ids), np.array([0, length - 1]))])


@pytest.mark.parametrize("tokens", [0, 8, 20, 1000])
def test_batches_hold_similar_lengths_within_a_number_of_tokens(tokens):
    lengths = [7, 30, 3, 8, 4, 3, 10, 30, 9]
    sequences = [Encoding(ids := np.arange(length), ids, ids) for length in lengths]
    places = {id(sequence): number for number, sequence in enumerate(sequences)}
    made = [[places[id(sequence)] for sequence in group] for group in batches_of_similar_length(sequences, tokens)]

    assert sorted(number for batch in made for number in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= tokens for batch in made)
    ordered = [lengths[number] for batch in made for number in batch]
    assert ordered == sorted(lengths)
    for batch, after in itertools.pairwise(made):  # another sequence did not fit
        assert (len(batch) + 1) * lengths[after[0]] > tokens


@pytest.mark.parametrize(("length", "wanted"), [(1, 16), (16, 16), (17, 32), (33, 40), (40, 40)])
def test_openvino_baseline_pads_to_a_multiple_that_the_model_can_read(length, wanted):
    made = padded(sequence(length), max_tokens=40)

    assert made.input_ids.shape == made.token_type_ids.shape == (1, wanted)
    assert made.input_ids[0, :length].tolist() == list(range(1, length + 1))
    assert not made.input_ids[0, length:].any()
    assert made.lengths.tolist() == [length]
    assert made.focus.tolist() == [0, length - 1]


def test_openvino_baseline_computes_the_rows_of_onnx_runtime(tmp_path):
    onnx.save(small_networks.graph("mobilebert", "fill-mask"), tmp_path / networks.GRAPH)
    network = networks.Network(Artifact(tmp_path, small_networks.draft("mobilebert", "fill-mask").manifest))
    batch = sequence(MULTIPLE - 3)
    (rows,) = baseline_fastapi_openvino.load(network)(batch)
    (expected,) = PaddedOnnx(network.graph, threads=1).run(batch)

    assert np.abs(rows - expected).max() <= 0.03 * np.abs(expected).max()
