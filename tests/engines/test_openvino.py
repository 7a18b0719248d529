"""Tests of the OpenVINO engine: it computes the rows of ONNX Runtime, within the precision of the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

from swiftlet_models.artifact import open_artifact
from swiftlet_serve.engines.openvino import OpenVino, create
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.types import Batch
from tests.support.checkpoints import relative_error
from tests.support.networks import NETWORKS, answers, draft, encodings, make

each = pytest.mark.parametrize(("architecture", "task"), NETWORKS)


@pytest.fixture(scope="module")
def artifact_dir(tmp_path_factory) -> Path:
    """Artifacts of each network in int8 and fp32. Tests must not change them."""
    directory = tmp_path_factory.mktemp("openvino")
    for architecture, task in NETWORKS:
        for precision in ("int8", "fp32"):
            make(directory / precision, draft(architecture, task, precision))
    return directory


def tolerance(engine: OpenVino) -> float:
    """Returns the tolerance of the engine's rows, for the order of sums or for bf16."""
    return 1e-5 if engine.extra_tolerance == 0 else 0.02


def rows(engine: OpenVino, task: str) -> list[np.ndarray]:
    return list(engine.run(Batch.of(encodings(task))))


def joined(parts: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts))


@each
def test_openvino_computes_the_rows_of_onnx_runtime(artifact_dir, architecture, task):
    artifact = open_artifact(artifact_dir / "fp32" / f"{architecture}-{task}")
    engine = create(artifact, threads=1)

    assert relative_error(joined(rows(engine, task)), answers(artifact, "onnx_cpu")) <= tolerance(engine)


@each
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_openvino_reproduces_golden_answers(artifact_dir, architecture, task, precision):
    model = load_model(artifact_dir / precision / f"{architecture}-{task}", "openvino")

    assert model.deviation is not None
    assert model.engine.title in ("openvino (bf16)", "openvino (f32)", "openvino (f16)")


@each
def test_openvino_computes_a_row_in_a_batch_nearly_as_alone(artifact_dir, architecture, task):
    engine = create(open_artifact(artifact_dir / "int8" / f"{architecture}-{task}"), threads=1)
    together = rows(engine, task)
    alone = [engine.run(Batch.of([one]))[0] for one in encodings(task)]

    assert [row.shape for row in together] == [row.shape for row in alone]
    assert relative_error(joined(together), joined(alone)) <= tolerance(engine)


def test_openvino_runs_several_calls_at_once(artifact_dir):
    engine = create(open_artifact(artifact_dir / "int8" / "bert-qa"), threads=1)
    given = encodings("qa")
    alone = [engine.run(Batch.of([one]))[0].tolist() for one in given]
    together = Barrier(len(given))

    def call(number: int) -> list[list[list[float]]]:
        together.wait()
        return [engine.run(Batch.of([given[number]]))[0].tolist() for _ in range(20)]

    with ThreadPoolExecutor(len(given)) as threads:
        found = list(threads.map(call, range(len(given))))

    assert found == [[expected] * 20 for expected in alone]
