"""Tests of the torch engine: it computes the rows of ONNX Runtime, and rejects weights of other networks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftlet_models.artifact import SAFETENSORS, WEIGHTS, ArtifactError, open_artifact, seal
from swiftlet_serve.engines import torch as torch_engine
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.types import Batch
from tests.support.checkpoints import relative_error
from tests.support.networks import NETWORKS, answers, encodings, network
from tests.support.tiers import first, first_of_each

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the engine runs on CUDA, in bf16")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


each = pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))

# fp32 sums round in another order, and torch does not quantise activations. Measured: at most 0.056, in four layers.
TOLERANCE = {"fp32": 1e-5, "int8": 0.07}


@on_cpu
@pytest.mark.parametrize("precision", TOLERANCE)
@each
def test_torch_computes_the_rows_of_onnx_runtime(released, architecture, task, precision):
    artifact = open_artifact(released(architecture, task, precision))
    error = relative_error(answers(artifact, "torch"), answers(artifact, "onnx_cpu"))

    assert error <= TOLERANCE[precision]


@on_cpu
@each
def test_torch_prefers_the_weights_of_safetensors(released, architecture, task):
    """The artifact's graph is int8 and its `model.safetensors` is fp32."""
    artifact = open_artifact(released(architecture, task, "both"))
    fp32 = open_artifact(released(architecture, task, "fp32"))

    assert relative_error(answers(artifact, "torch"), answers(fp32, "onnx_cpu")) <= 1e-5


@on_cpu
@each
def test_torch_computes_a_row_in_a_batch_as_alone(released, architecture, task):
    engine = torch_engine.create(open_artifact(released(architecture, task, "both")), threads=1)
    together = engine.run(Batch.of(encodings(task)))
    alone = [engine.run(Batch.of([one]))[0] for one in encodings(task)]

    assert [row.shape for row in together] == [row.shape for row in alone]
    assert all(row.dtype == np.float32 for row in together)
    assert relative_error(*(torch.from_numpy(np.concatenate(part)) for part in (together, alone))) <= 1e-5


@pytest.mark.parametrize("kind", first(["int8", "fp32", "both"], "int8", "both"))
@each
def test_torch_reproduces_golden_answers(released, architecture, task, kind):
    """Also on CUDA: the tolerance allows for bf16."""
    model = load_model(released(architecture, task, kind), "torch")

    assert model.deviation is not None
    model.engine.close()


@on_cuda
@each
def test_torch_on_cuda_computes_nearly_the_rows_of_the_cpu(released, architecture, task):
    artifact = open_artifact(released(architecture, task, "both"))
    fp32 = open_artifact(released(architecture, task, "fp32"))
    engine = torch_engine.create(artifact, threads=1)
    (row,) = engine.run(Batch.of(encodings(task)[:1]))

    assert engine.extra_tolerance > 0
    assert row.dtype == np.float32
    assert relative_error(answers(artifact, "torch"), answers(fp32, "onnx_cpu")) <= 0.1


def test_load_network_builds_the_network_of_the_manifest(released):
    loaded = torch_engine.load_network(open_artifact(released("albert", "fill-mask", "both")))
    own = network("albert", "fill-mask").state_dict()

    assert all(torch.equal(tensor, own[name]) for name, tensor in loaded.state_dict().items())


@pytest.fixture
def copied(released, tmp_path) -> Path:
    path = tmp_path / "copied"
    shutil.copytree(released("bert", "classify", "both"), path)
    return path


def rejection(path: Path) -> str:
    with pytest.raises(ArtifactError) as error:
        torch_engine.create(open_artifact(path), threads=1)
    message = str(error.value)
    assert message.startswith("copied: ")
    assert "\n" not in message
    assert len(message) < 250
    return message


def rewrite(path: Path, change) -> None:
    """Changes the file of weights and seals the artifact again."""
    manifest = open_artifact(path).manifest
    weights = load_file(path / SAFETENSORS)
    change(weights)
    save_file(weights, path / SAFETENSORS)
    seal(path, manifest)


def test_torch_rejects_a_missing_weight(copied):
    rewrite(copied, lambda weights: weights.pop("head.output.bias"))

    assert "'head.output.bias' is missing" in rejection(copied)


def test_torch_rejects_an_unexpected_weight(copied):
    rewrite(copied, lambda weights: weights.update({"encoder.layers.7.query.bias": torch.zeros(64)}))

    assert "'encoder.layers.7.query.bias' is unexpected" in rejection(copied)


def test_torch_rejects_a_weight_of_another_shape(copied):
    rewrite(copied, lambda weights: weights.update({"head.output.weight": torch.zeros(2, 64)}))

    assert "head.output.bias' has the shape" in rejection(copied)


def test_torch_rejects_weights_of_another_architecture(released, copied):
    manifest = open_artifact(copied).manifest
    shutil.copy(released("mobilebert", "qa", "both") / SAFETENSORS, copied / SAFETENSORS)
    seal(copied, manifest)

    assert "do not match the manifest" in rejection(copied)


def test_torch_rejects_a_graph_of_another_network(released, copied):
    manifest = open_artifact(copied).manifest
    (copied / SAFETENSORS).unlink()
    shutil.copy(released("albert", "classify", "int8") / WEIGHTS, copied / WEIGHTS)
    seal(copied, manifest)

    assert "do not match the manifest" in rejection(copied)


@pytest.mark.parametrize("name", [SAFETENSORS, WEIGHTS])
@pytest.mark.parametrize("content", [b"no weights", b"\x00" * 64, b"\xff" * 64])
def test_torch_rejects_a_file_without_weights(copied, name, content):
    manifest = open_artifact(copied).manifest
    (copied / SAFETENSORS).unlink()
    (copied / name).write_bytes(content)
    seal(copied, manifest)

    assert rejection(copied)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", 65), ("hidden_size", "64"), ("layers", 3), ("num_attention_heads", 5), ("vocab_size", -1)],
)
def test_torch_rejects_an_invalid_configuration(copied, key, value):
    manifest = open_artifact(copied).manifest
    seal(copied, replace(manifest, config={**manifest.config, key: value}))

    assert rejection(copied)


def test_load_model_rejects_weights_that_miss_the_golden_answers(copied):
    rewrite(copied, lambda weights: weights["head.output.bias"].add_(0.5))

    with pytest.raises(ArtifactError, match="differ from the golden answers"):
        load_model(copied, "torch")
