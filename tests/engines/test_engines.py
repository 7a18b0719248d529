"""Tests of every engine: a row does not depend on the rest of the batch, and invalid files are rejected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.artifact import ONNX, ArtifactError, open_artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve import engines, plugins
from swiftlet_serve.engines.echo import Echo, echo
from swiftlet_serve.engines.onnx_cpu import PaddedOnnx
from swiftlet_serve.types import Batch, Cost
from tests.support.artifacts import VOCABULARY, WIDTHS, make_artifact, network, table
from tests.support.paths import ROOT
from tests.support.tiers import first


@st.composite
def encodings(draw: st.DrawFn) -> Encoding:
    ids = np.array(draw(st.lists(st.integers(1, len(VOCABULARY) - 1), min_size=1, max_size=20)), np.int64)
    focus = draw(st.lists(st.integers(0, len(ids) - 1), max_size=5))
    return Encoding(ids, np.ones_like(ids), np.array(focus, np.int64))


@given(st.lists(encodings(), min_size=1, max_size=8))
def test_batch_restores_its_encodings(given_encodings):
    restored = Batch.of(given_encodings).encodings()

    for before, after in zip(given_encodings, restored, strict=True):
        assert before.input_ids.tolist() == after.input_ids.tolist()
        assert before.token_type_ids.tolist() == after.token_type_ids.tolist()
        assert before.focus.tolist() == after.focus.tolist()


@given(st.lists(encodings(), min_size=1, max_size=8))
def test_padded_batch_holds_the_encodings_and_zeros(given_encodings):
    padded = Batch.of(given_encodings).padded()
    flat = padded.input_ids.reshape(-1)

    longest = max(len(e.input_ids) for e in given_encodings)
    assert padded.input_ids.shape == padded.token_type_ids.shape == (len(given_encodings), longest)
    for encoding, ids, types, length in zip(given_encodings, *padded[:3], strict=True):
        assert length == len(encoding.input_ids)
        assert ids[:length].tolist() == encoding.input_ids.tolist()
        assert types[:length].tolist() == encoding.token_type_ids.tolist()
        assert not ids[length:].any()
        assert not types[length:].any()
    read = np.concatenate([e.input_ids[e.focus] for e in given_encodings])
    assert flat[padded.focus].tolist() == read.tolist()


@pytest.fixture(scope="module")
def made(artifact_dir):
    model = artifact_dir / "tiny-classify" / ONNX
    return {"onnx_cpu": PaddedOnnx(model, threads=1), "echo": Echo(3)}


@pytest.mark.parametrize("name", first(["onnx_cpu", "echo"], "onnx_cpu"))
@given(batch=st.lists(encodings(), min_size=1, max_size=8))
def test_engine_computes_a_row_in_a_batch_as_alone(name, batch, made):
    engine = made[name]
    together = engine.run(Batch.of(batch))

    assert [row.shape for row in together] == [(len(e.focus), 3) for e in batch]
    for encoding, row in zip(batch, together, strict=True):
        (alone,) = engine.run(Batch.of([encoding]))
        assert row.dtype == np.float32
        assert row.tolist() == alone.tolist()


def test_padded_graph_computes_the_rows_of_the_network(made):
    encoding = Encoding(np.array([2, 9, 3]), np.zeros(3, np.int64), np.array([1, 2]))
    (row,) = made["onnx_cpu"].run(Batch.of([encoding]))

    assert row.tolist() == table(3)[[9, 3]].tolist()


def test_rows_of_a_padded_graph_do_not_share_memory(made):
    encoding = Encoding(np.array([2, 9, 3]), np.zeros(3, np.int64), np.array([1, 2]))
    first, second = made["onnx_cpu"].run(Batch.of([encoding, encoding]))

    assert not np.shares_memory(first, second)
    assert first.base is None


def test_echo_rows_depend_on_ids_positions_and_columns():
    ids = np.arange(2, 12)
    row = echo(Encoding(ids, np.zeros_like(ids), np.arange(10)), 7)
    other = echo(Encoding(ids[::-1].copy(), np.zeros_like(ids), np.arange(10)), 7)

    assert len(set(row.reshape(-1).tolist())) == row.size
    assert not np.allclose(row, other)


def test_plugins_load_an_engine_by_name(artifact_dir):
    artifact = open_artifact(artifact_dir / "tiny-qa")
    for name in ("onnx_cpu", "echo"):
        engine = plugins.load(engines, name).create(artifact, threads=1)
        (row,) = engine.run(Batch.of([Encoding(np.array([2, 3]), np.zeros(2, np.int64), np.array([0, 1]))]))

        assert isinstance(engine.cost, Cost)
        assert row.shape == (2, WIDTHS["qa"])
        engine.close()


def test_openvino_needs_an_architecture(artifact_dir):
    with pytest.raises(ArtifactError, match="OpenVINO cannot run the network: the architecture 'table' is unknown"):
        plugins.load(engines, "openvino").create(open_artifact(artifact_dir / "tiny-qa"), threads=1)


def test_padded_graph_has_no_external_data(tmp_path: Path):
    outside = tmp_path / "outside.onnx"
    onnx.save(network(3), outside, save_as_external_data=True, location="data.bin", size_threshold=0)

    with pytest.raises(ArtifactError, match="data outside itself"):
        PaddedOnnx(outside, threads=1)


@pytest.mark.parametrize("content", [b"not a network", b""])
def test_padded_graph_is_a_valid_file(content, tmp_path: Path):
    file = tmp_path / ONNX
    file.write_bytes(content)

    with pytest.raises(ArtifactError, match=r"model\.onnx cannot be loaded"):
        PaddedOnnx(file, threads=1)


def test_padded_graph_has_the_expected_inputs_and_outputs(tmp_path: Path):
    model = network(3)
    model.graph.output[0].name = "read"
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    model.graph.output[0].type.tensor_type.shape.dim.pop()
    onnx.save(model, tmp_path / ONNX)

    with pytest.raises(ArtifactError, match="unexpected inputs or outputs"):
        PaddedOnnx(tmp_path / ONNX, threads=1)


def test_open_artifact_rejects_an_altered_network(tmp_path: Path):
    artifact = make_artifact(tmp_path, "classify")
    with artifact.file(ONNX).open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")

    with pytest.raises(ArtifactError, match="was altered"):
        open_artifact(artifact.path)


IN_CI = {"CI", "TF_BUILD", "JENKINS_URL"}  # with these variables, OpenVINO sends no telemetry


@pytest.mark.parametrize("engine", first(["onnx_cpu", "openvino"], "openvino"))
def test_engine_sends_no_telemetry(engine, tmp_path):
    """A runtime with telemetry first creates an id in the home directory."""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "XDG_DATA_HOME": "", "XDG_STATE_HOME": ""}
    environment = {name: value for name, value in os.environ.items() if name not in IN_CI} | home
    command = [
        sys.executable,
        "-m",
        "swiftlet_serve",
        "check",
        "--engine",
        engine,
        "mobilebert-sst2",
    ]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)

    assert list(tmp_path.rglob("*")) == []


GROWTH = """
import sys
from pathlib import Path
import numpy as np
from swiftlet_models.artifact import open_artifact
from swiftlet_serve.engines.onnx_cpu import create
from swiftlet_serve.machine.memory import resident_bytes
from swiftlet_serve.types import Batch

ids = np.full(512, 7)
zero, ends = np.zeros(1, np.int64), np.array([0, 512])
text = Batch.without_top_k(
    input_ids=ids, token_type_ids=0 * ids, offsets=ends, focus=zero, focus_offsets=np.array([0, 1])
)
first, *others = [create(open_artifact(Path(path)), 1) for path in sys.argv[1:]]
first.run(text)
before = resident_bytes()
for engine in others:
    engine.run(text)
print((resident_bytes() - before) // 2**20)
"""


def test_onnx_engines_share_an_arena():
    """With an arena for each engine, the memory grows by 64 MiB."""
    paths = [
        str(ROOT / "models/swiftlet_models/bundled" / name)
        for name in ("albert-cola", "albert-nsmc", "albert-qa", "albert-sst2")
    ]
    grown = subprocess.run([sys.executable, "-c", GROWTH, *paths], stdout=subprocess.PIPE, check=True)

    assert int(grown.stdout) < 20
