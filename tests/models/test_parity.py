"""Every architecture computes the rows of transformers on every engine, within the differences that the page states."""

from __future__ import annotations

import math

import pytest

from swiftlet_models import architectures
from tests import parity
from tests.support.checkpoints import Task

FP32 = 1e-5
INT8 = 0.2  # measured: at most 0.12, for MobileBERT, whose NoNorm passes rounding errors on


@pytest.mark.parametrize(("name", "task"), parity.CASES)
def test_engines_compute_the_rows_of_transformers(name: str, task: Task) -> None:
    fp32, onnx_fp32, onnx_int8, native_int8 = parity.differences(parity.SHAPES[name], task)

    assert max(fp32, onnx_fp32) <= FP32
    assert 0 < onnx_int8 <= INT8
    assert math.isnan(native_int8) or 0 < native_int8 <= INT8


def test_page_has_every_architecture_and_task() -> None:
    page = parity.PAGE.read_text("utf-8")

    assert {name for name, _ in parity.CASES} == set(architectures.model_types())
    assert all(f"| {name} | {task} |" in page for name, task in parity.CASES)
