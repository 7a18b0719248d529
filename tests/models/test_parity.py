"""Every architecture computes the rows of transformers on every engine, within the differences that the page states."""

from __future__ import annotations

import math

import pytest

from swiftlet_models import architectures
from tests import parity
from tests.support import standard_checkpoints
from tests.support.checkpoints import Task
from tests.support.tiers import first_of_each

FP32 = 1e-5
INT8 = 0.2  # measured: at most 0.12, for MobileBERT, whose NoNorm passes rounding errors on


def _kind(case: tuple[str, Task]) -> object:
    """Returns what one case in the first tier shows: every head of two families, and one head of the others."""
    return case if case[0] in ("mobilebert", "modernbert") else case[0]


@pytest.mark.parametrize(("name", "task"), first_of_each(parity.CASES, _kind))
def test_engines_compute_the_rows_of_transformers(name: str, task: Task) -> None:
    fp32, onnx_fp32, onnx_int8, native_int8 = parity.differences(parity.SHAPES[name], task)

    assert max(fp32, onnx_fp32) <= FP32
    assert 0 < onnx_int8 <= INT8
    assert math.isnan(native_int8) or 0 < native_int8 <= INT8


def test_page_has_every_architecture_and_task() -> None:
    page = parity.PAGE.read_text("utf-8")

    cases = [*parity.CASES, *((name, "embed") for name in standard_checkpoints.MODELS)]
    assert {name for name, _ in cases} == set(architectures.model_types(of_code=False))
    assert all(f"| {name} | {task} |" in page for name, task in cases)
