"""Tests of the OpenVINO engine: it computes the rows of ONNX Runtime, within the precision of the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from threading import Barrier

import numpy as np
import pytest
import torch

from swiftlet_models.artifact import open_artifact
from swiftlet_serve.engines.openvino import OpenVino, create
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.types import Batch
from tests.support.checkpoints import relative_error
from tests.support.networks import NETWORKS, answers, encodings
from tests.support.tiers import first, first_of_each

each = pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))


def tolerance(engine: OpenVino) -> float:
    """Returns the tolerance of the engine's rows, for the order of sums or for bf16."""
    return 1e-5 if engine.extra_tolerance == 0 else 0.02


def rows(engine: OpenVino, task: str) -> list[np.ndarray]:
    return list(engine.run(Batch.of(encodings(task))))


def joined(parts: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts))


@each
def test_openvino_computes_the_rows_of_onnx_runtime(released, architecture, task):
    artifact = open_artifact(released(architecture, task, "fp32"))
    engine = create(artifact, threads=1)

    assert relative_error(joined(rows(engine, task)), answers(artifact, "onnx_cpu")) <= tolerance(engine)


@each
@pytest.mark.parametrize("precision", first(["int8", "fp32"], "int8"))
def test_openvino_reproduces_golden_answers(released, architecture, task, precision):
    model = load_model(released(architecture, task, precision), "openvino")

    assert model.deviation is not None
    assert model.engine.title in ("openvino (bf16)", "openvino (f32)", "openvino (f16)")


@each
def test_openvino_computes_a_row_in_a_batch_nearly_as_alone(released, architecture, task):
    engine = create(open_artifact(released(architecture, task, "int8")), threads=1)
    together = rows(engine, task)
    alone = [engine.run(Batch.of([one]))[0] for one in encodings(task)]

    assert [row.shape for row in together] == [row.shape for row in alone]
    assert relative_error(joined(together), joined(alone)) <= tolerance(engine)


def test_openvino_runs_several_calls_at_once(released):
    engine = create(open_artifact(released("bert", "qa", "int8")), threads=1)
    given = encodings("qa")
    alone = [engine.run(Batch.of([one]))[0].tolist() for one in given]
    together = Barrier(len(given))

    def call(number: int) -> list[list[list[float]]]:
        together.wait()
        return [engine.run(Batch.of([given[number]]))[0].tolist() for _ in range(20)]

    with ThreadPoolExecutor(len(given)) as threads:
        found = list(threads.map(call, range(len(given))))

    assert found == [[expected] * 20 for expected in alone]
