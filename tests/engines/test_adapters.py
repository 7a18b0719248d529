"""Adapters on one base: each answers in any batch as alone, and as its merged network but for rounding."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from swiftlet_models import trunks
from swiftlet_models.folding import fold
from swiftlet_models.weights import read_weights
from swiftlet_serve.engines import _kernel_selection, native
from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.engines._program_numbers import without_adapter
from swiftlet_serve.engines._shared_trunk import Apart, Readings, SharedTrunk
from swiftlet_serve.engines.native import Native
from swiftlet_serve.machine.sealed_files import SealedFiles, path_of
from swiftlet_serve.types import Batch
from swiftlet_serve.workers.hosted_model import host_model
from tests.support.adapters import adapted
from tests.support.native_kernels import SETTINGS, best, encoding, network, plain_tiles, run_folded, weights
from tests.support.shared_trunks import make_adapted, sequences
from tests.support.tiers import first

pytestmark = pytest.mark.skipif(_kernel_selection.best() is None, reason="no kernel is compiled for this CPU")

TOLERANCE = {"int8": 0.08, "bf16": 3 / 256}  # as in test_native.py
BATCH = [encoding(length, [0, length - 1], length) for length in (2, 40, 9, 33, 1)]


def trunks_of(architecture: str, adapters: int, **changes):
    """Returns the encoder of a small network with as many adapters, folded: all have the same base."""
    config, own = {**SETTINGS[architecture], **changes}, weights(network(architecture, "qa"))
    return [fold(architecture, config, adapted(own, 3 + 14 * n, n) if n else own) for n in range(adapters + 1)]


def together(library, folded, precision="int8", **options) -> Native:
    """Returns the networks in one engine. Number 0 has no adapter."""
    return Native(
        library, folded[0], precision=precision, adapters=[without_adapter(one)[1] for one in folded], **options
    )


@pytest.mark.parametrize("architecture", first(("bert", "albert", "modernbert", "distilbert", "mpnet"), "bert"))
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_rows_of_several_adapters_in_one_batch_equal_those_of_each_model_alone(architecture, precision):
    artifacts = make_adapted(architecture, precision)
    assert trunks.groups([artifact.path for artifact in artifacts]) == [[artifact.path for artifact in artifacts]]
    shared, own = native.create_heads(artifacts, 2), [native.create(artifact, 2) for artifact in artifacts]
    assert isinstance(shared, SharedTrunk)
    assert "4 heads on one trunk in 3 forms" in shared.title
    encodings = sequences(artifacts)

    rows = shared.run(Batch.of(encodings))

    for one, row in zip(encodings, rows, strict=True):
        (alone,) = own[one.head].run(Batch.of([replace(one, head=0)]))
        assert row.tobytes() == alone.tobytes() == shared.run(Batch.of([one]))[0].tobytes()
    _kernel_selection.best().share_cores(1)
    assert [row.tobytes() for row in shared.run(Batch.of(encodings))] == [row.tobytes() for row in rows]


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_adapters_compute_the_merged_network(precision):
    folded = trunks_of("bert", 2)
    engine = together(best(), folded, precision)
    for number, one in enumerate(folded):
        merged = replace(one, products={name: replace(p, matrix=p.weight) for name, p in one.products.items()})
        expected = run_folded(merged, Batch.of(BATCH))
        rows = np.concatenate(engine.run(Batch.of(BATCH).for_head(number)))
        error = np.sqrt(np.mean((rows - expected) ** 2) / np.mean(expected**2))
        assert error <= TOLERANCE[precision]
        if number:
            other = np.concatenate(engine.run(Batch.of(BATCH).for_head(0)))
            assert np.sqrt(np.mean((other - expected) ** 2) / np.mean(expected**2)) > 4 * TOLERANCE[precision]


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_tiles_and_vectors_compute_each_row_by_itself(activation, tmp_path):
    """On tiles in software, whose epilogue is another one: sums of int8 are exact, and those of bf16 nearly equal."""
    folded = trunks_of("bert", 2, hidden_act=activation)
    tiles, vectors = (together(library, folded) for library in (Library(plain_tiles(tmp_path)), best()))
    encodings = [replace(one, head=number % 3) for number, one in enumerate(BATCH)]
    rows = tiles.run(Batch.of(encodings))

    for one, row in zip(encodings, rows, strict=True):
        assert row.tobytes() == tiles.run(Batch.of([one]))[0].tobytes()
    expected = np.concatenate(vectors.run(Batch.of(encodings)))
    assert np.sqrt(np.mean((np.concatenate(rows) - expected) ** 2) / np.mean(expected**2)) < TOLERANCE["int8"]


def test_rows_without_an_adapter_have_the_bits_of_the_base_alone():
    folded = trunks_of("bert", 1)
    rows = together(best(), folded).run(Batch.of([replace(one, head=n % 2) for n, one in enumerate(BATCH)]))
    alone = Native(best(), folded[0]).run(Batch.of(BATCH))
    assert [row.tobytes() for row in rows[::2]] == [row.tobytes() for row in alone[::2]]


def test_lone_sequence_in_chunks_equals_that_in_one_thread():
    folded = trunks_of("modernbert", 2)
    engine = together(best(), folded)
    batch = Batch.of([encoding(40, [0, 30], 1)]).for_head(2)
    best().share_cores(2)
    shared = engine.run(batch)[0]
    best().share_cores(1)
    assert shared.tobytes() == engine.run(batch)[0].tobytes()


def test_number_that_is_not_finite_reaches_the_outputs_of_its_adapter_alone(monkeypatch):
    folded = trunks_of("bert", 2)
    monkeypatch.setattr(native, "round_to_bf16", lambda array: np.full(array.shape, 0x7FC0, np.uint16))
    engine = together(best(), [folded[0], folded[1], replace(folded[0])])
    rows = engine.run(Batch.of([replace(BATCH[1], head=n) for n in (0, 1, 2)]))
    assert [bool(np.isfinite(row).all()) for row in rows] == [True, False, True]


def test_engine_refuses_an_adapter_that_does_not_fit():
    folded = trunks_of("bert", 1)[0]
    a, b = np.zeros((4, 64), np.float32), np.zeros((64, 4), np.float32)
    name, wide = "layers.0.output", "layers.0.feed_forward.0.inner"
    for adapter in ({name: (a[:, :48], b)}, {name: (a, b[:48])}, {wide: (a, b)}, {name: (a[:0], b[:, :0])}):
        with pytest.raises(ValueError, match="does not fit its product"):
            Native(best(), folded, adapters=[adapter])
    for number in (-1, 2, 2**40):
        with pytest.raises(ValueError, match="the batch is invalid"):
            Native(best(), folded, adapters=[{}, {name: (a, b)}]).run(Batch.of(BATCH).for_head(number))
    with pytest.raises(ValueError, match="not finite"):
        Native(best(), folded, adapters=[{name: (a + np.nan, b)}])
    c, model = best().c, Native(best(), folded)._model
    bits = np.zeros((64, 64), np.uint16)
    for numbers in ((-1, 0, 16), (1, 0, 16), (0, -1, 16), (0, 99, 16), (0, 0, 0), (0, 0, 8), (0, 0, 1 << 30)):
        assert c.swiftlet_add_delta(model, *numbers, bits, bits) in (3, 5)
    assert {c.swiftlet_set_adapters(model, count) for count in (0, -1, 1 << 20)} == {5}


def test_engine_refuses_an_adapter_in_front_of_a_gain():
    config = {**SETTINGS["mobilebert"]}
    folded = fold("mobilebert", config, weights(network("mobilebert", "qa")))
    name = next(step.product for step in folded.program if getattr(step, "gain", None))
    rows, columns = folded.products[name].matrix.shape
    adapter = {name: (np.zeros((4, columns), np.float32), np.zeros((rows, 4), np.float32))}
    with pytest.raises(ValueError, match="contradict each other"):
        Native(best(), folded, adapters=[adapter])


def test_a_trunk_runs_a_text_once_for_each_adapter():
    texts = [replace(BATCH[0], head=head) for head in (0, 1, 2, 3)]
    readings = Readings.of(Batch.of(texts), [False] * 4, [0, 1, 0, 2])
    assert readings.numbers == [0, 1, 0, 2]
    assert readings.trunk.heads.tolist() == [0, 1, 2]
    assert Readings.of(Batch.of(texts[3:]), [False] * 4, [0, 1, 0, 2]).trunk.heads.tolist() == [2]


def test_processes_share_the_packed_weights_of_base_and_adapters():
    artifacts, files = make_adapted("bert"), SealedFiles()
    packed = native.create_heads(artifacts, 1, files)
    mapped = native.create_heads(artifacts, 1, second := SealedFiles([path_of(os.getpid(), one) for one in files.new]))
    batch = Batch.of(sequences(artifacts))
    assert second.new == []
    assert [row.tobytes() for row in packed.run(batch)] == [row.tobytes() for row in mapped.run(batch)]


@pytest.mark.parametrize("engine", first(("onnx_cpu", "torch"), "onnx_cpu"))
def test_other_engines_merge_adapters(engine):
    artifacts = make_adapted("bert", "fp32")
    hosted, _ = host_model(artifacts, engine)
    assert isinstance(hosted.engine, Apart)
    for head, artifact in enumerate(artifacts):
        merged = {name: np.asarray(weight) for name, weight in read_weights(artifact.weights).items()}
        manifest = artifact.manifest
        expected = run_folded(fold(manifest.architecture, manifest.config, merged), Batch.of(BATCH))
        rows = np.concatenate(hosted.engine.run(Batch.of(BATCH).for_head(head)))
        np.testing.assert_allclose(rows, expected, atol=1e-4)


def test_memory_of_an_adapter_is_that_of_its_matrices():
    folded = trunks_of("bert", 2)
    two, three = (together(best(), folded[:count]).bytes for count in (2, 3))
    matrices = without_adapter(folded[2])[1].values()
    numbers = sum((len(a) + -len(a) % 16) * (a.shape[1] + len(b)) for a, b in matrices)
    assert 2 * numbers <= three - two <= 2.2 * numbers
