"""Several heads on one trunk: what they answer, and what they cost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from swiftlet_models.artifact import open_artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve.engines import echo, native
from swiftlet_serve.engines._shared_trunk import Apart, Readings, SharedTrunk
from swiftlet_serve.types import Batch, Engine, Row
from swiftlet_serve.types.topk import Ranked
from swiftlet_serve.workers.hosted_model import host_model
from tests.support import networks
from tests.support.shared_trunks import make_heads, sequences
from tests.support.tiers import first

ARCHITECTURES = first(
    ("bert", "albert", "modernbert", "mobilebert", "deberta_v2", "mpnet", "distilbert"), "bert", "modernbert"
)


@pytest.fixture(autouse=True)
def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives MobileBERT's heads the width that the kernels need."""
    wide = {**networks.CONFIGS["mobilebert"], "num_attention_heads": 2}
    monkeypatch.setattr(networks, "CONFIGS", {**networks.CONFIGS, "mobilebert": wide})


def alone(engines: Sequence[Engine], encoding: Encoding) -> Row:
    """Returns what the artifact of a sequence's head answers without the others."""
    return engines[encoding.head].run(Batch.of([replace(encoding, head=0)]))[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("precision", first(("int8", "bf16"), "int8"))
def test_heads_on_one_trunk_answer_to_the_bit_what_their_artifacts_answer_alone(architecture, precision):
    artifacts = make_heads(architecture, precision)
    shared, own = native.create_heads(artifacts, 1), [native.create(artifact, 1) for artifact in artifacts]
    assert isinstance(shared, SharedTrunk)
    encodings = sequences(artifacts)

    together = shared.run(Batch.of(encodings))

    assert len(encodings) == len(together) == 25
    for encoding, row in zip(encodings, together, strict=True):
        np.testing.assert_array_equal(row, alone(own, encoding))
        np.testing.assert_array_equal(row, shared.run(Batch.of([encoding]))[0])


@pytest.mark.exhaustive
def test_heads_in_torch_answer_what_their_artifacts_answer_alone():
    from swiftlet_serve.engines import torch

    artifacts = make_heads("modernbert")
    shared, own = torch.create_heads(artifacts, 1), [torch.create(artifact, 1) for artifact in artifacts]
    encodings = sequences(artifacts)
    for encoding, row in zip(encodings, shared.run(Batch.of(encodings)), strict=True):
        expected = alone(own, encoding)
        if isinstance(encoding, Ranked):  # the columns of nearly equal numbers may change their places
            row, expected = row[:, :6], expected[:, :6]
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_a_trunk_runs_each_text_once_with_the_positions_that_its_heads_read():
    ids, types = np.arange(6), np.zeros(6, np.int64)
    texts = [
        Encoding(ids, types, np.array([0]), head=0),
        Encoding(ids + 1, types, np.array([0]), head=0),
        Encoding(ids.copy(), types, np.array([4, 2]), head=1),
        Encoding(ids, types, np.array([0]), head=2),
        Encoding(ids, types, np.array([0]), head=0, attended=3),
        Encoding(ids, types + 1, np.array([], np.int64), head=1),
    ]
    readings = Readings.of(Batch.of(texts[:3]), [False, False, True], [0, 0, 0])
    assert readings.numbers == [0, 1, 0]
    assert [one.focus.tolist() for one in readings.trunk.encodings()] == [[0, 2, 4], [0]]
    assert [list(places) for places in readings.places if places is not None] == [[0], [0], [2, 1]]
    readings = Readings.of(Batch.of(texts), [False, False, True], [0, 0, 0])
    assert readings.numbers == [0, 1, 0, 0, 2, 3]
    assert [one.focus.tolist() for one in readings.trunk.encodings()] == [[*range(6)], [0], [0], [0]]
    assert readings.trunk.attended.tolist() == [6, 6, 3, 6]
    alone = Readings.of(Batch.of(texts[2:3]), [False, False, True], [0, 0, 0])
    assert (alone.numbers, alone.places, alone.trunk.focus.tolist()) == ([0], [None], [4, 2])


def test_a_sequence_without_positions_in_focus_has_an_empty_row():
    artifacts = make_heads("bert")
    shared = native.create_heads(artifacts, 1)
    ids = np.arange(2, 9)
    empty = Encoding(ids, np.zeros_like(ids), np.zeros(0, np.int64), head=1)
    rows = shared.run(Batch.of([empty, replace(empty, focus=np.array([3]))]))
    assert [row.shape for row in rows] == [(0, 2), (1, 2)]


def test_host_model_replays_the_golden_answers_of_every_head():
    artifacts = make_heads("bert")
    hosted, deviation = host_model(artifacts, "native")
    assert hosted.widths == [3, 2, networks.VOCABULARY, 64, 64]
    assert hosted.engine.cost.shares_trunk
    assert "5 heads on one trunk" in hosted.engine.title
    assert deviation is not None
    assert 0 < deviation < 1
    assert len(hosted.timed_calls) > 0

    swapped = [artifacts[1], artifacts[0]]  # the golden answers are those of the artifacts in their order
    assert host_model(swapped, "native")[0].widths == [2, 3]


def test_artifacts_run_apart_where_the_engine_cannot_share_a_trunk(caplog):
    artifacts = make_heads("bert")
    hosted, _ = host_model(artifacts, "onnx_cpu")
    assert isinstance(hosted.engine, Apart)
    assert not hosted.engine.cost.shares_trunk
    encodings = sequences(artifacts)
    own = [host_model([artifact], "onnx_cpu")[0].engine for artifact in artifacts]
    for encoding, row in zip(encodings, hosted.engine.run(Batch.of(encodings)), strict=True):
        assert row.shape == alone(own, encoding).shape
    hosted.engine.close()

    artifacts = make_heads("electra")
    with caplog.at_level(logging.WARNING):
        assert isinstance(host_model(artifacts, "native")[0].engine, SharedTrunk)
    engine, _ = host_model(artifacts, "echo")
    assert [row.shape for row in engine.engine.run(Batch.of(sequences(artifacts)[:2]))]
    assert isinstance(echo.create(open_artifact(artifacts[0].path), 1), echo.Echo)


def test_the_time_of_helpers_is_the_sum_over_networks_that_run_apart():
    class Helped(echo.Echo):
        helped_s = 0.0

        def run(self, batch):
            self.helped_s = float(len(batch))
            return super().run(batch)

    artifacts = make_heads("bert")
    encodings, engine = sequences(artifacts), Apart([Helped(artifact.manifest.width) for artifact in artifacts])
    assert engine.helped_s == 0
    engine.run(Batch.of(encodings))
    assert engine.helped_s == len(encodings)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: engine.helped_s).result() == 0


def test_a_head_refuses_hidden_states_that_do_not_fit_it():
    artifact = make_heads("bert")[0]
    head = native._native(artifact, 1, None, "head")
    ids = np.zeros(3, np.int64)
    batch = Batch.of([Encoding(ids, ids, np.array([0]))])
    for given in (None, np.zeros((3, 32), np.float32), np.zeros((2, 64), np.float32)):
        with pytest.raises(ValueError, match="batch is invalid"):
            head.run(replace(batch, given=given))
    assert head.run(replace(batch, given=np.ones((3, 64), np.float32)))[0].shape == (1, 3)
    whole = native.create(artifact, 1)
    with pytest.raises(ValueError, match="batch is invalid"):
        whole.run(replace(batch, given=np.ones((3, 64), np.float32)))
