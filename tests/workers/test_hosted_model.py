"""A model loaded into an engine: every sequence of a batch has its own outcome."""

from __future__ import annotations

import math
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve.errors import Internal, SetupError
from swiftlet_serve.types import Batch
from swiftlet_serve.types.codec import ERROR_DETAILS
from swiftlet_serve.types.topk import NOTHING, Ranked
from swiftlet_serve.workers.hosted_model import (
    EngineModel,
    host_model,
    kernel_faults,
    run_batch,
    runtime_title,
)
from tests.support.artifacts import make_artifact
from tests.support.fakes import WIDTH, Engine, encoding, row_of


def codes(outcomes) -> list[str | None]:
    return [one.code if isinstance(one, Internal) else None for one in outcomes]


@given(st.integers(1, 33), st.sets(st.integers(0, 32)))
def test_run_batch_fails_only_sequences_that_fail_alone(n, faulty):
    def answer(tags):
        if faulty & set(tags):
            raise RuntimeError("cannot")
        return [row_of(tag) for tag in tags]

    outcomes = run_batch(EngineModel(Engine(answer), [WIDTH]), Batch.of([encoding(tag) for tag in range(n)]))

    assert codes(outcomes) == ["internal" if tag in faulty else None for tag in range(n)]
    assert all(one.tolist() == row_of(tag).tolist() for tag, one in enumerate(outcomes) if tag not in faulty)


def test_run_batch_rejects_rows_that_are_not_finite():
    rows = [np.array([[tag, math.nan]], np.float32) for tag in range(2)]
    outcomes = run_batch(EngineModel(Engine(lambda _: rows), [WIDTH]), Batch.of([encoding(tag) for tag in range(2)]))

    assert [one.detail for one in outcomes] == [ERROR_DETAILS["invalid_engine_output"]] * 2


@pytest.mark.parametrize("column", [-1, 10, 2.0**33])
def test_run_batch_rejects_top_k_rows_with_a_column_out_of_range(column):
    ranked = Ranked(**vars(encoding(1)), top_k=1, candidates=NOTHING)
    rows = [np.array([[0.5, 0.25, place]], np.float32) for place in (9, column)]
    outcomes = run_batch(EngineModel(Engine(lambda _: rows), [10]), Batch.of([ranked, ranked]))

    assert codes(outcomes) == [None, "invalid_engine_output"]


def test_host_model_requires_an_engine_that_reproduces_the_golden_answers(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    hosted, deviation = host_model([artifact], "onnx_cpu")

    assert (hosted.widths, deviation) == ([3], 0.0)
    assert len(hosted.timed_calls) == 2
    assert host_model([artifact], "echo") == ((ANY, [3], []), None)
    artifact.file("model.onnx").write_bytes(b"no")
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        host_model([artifact], "onnx_cpu")
    with pytest.raises(SetupError, match="no 'abacus'"):
        host_model([artifact], "abacus")


class Odd(Engine):
    """An engine whose properties return a value or raise it."""

    def __init__(self, value: object):
        super().__init__()
        self._value = value

    def _give(self):
        if isinstance(self._value, Exception):
            raise self._value
        return self._value

    title = property(_give)
    kernel_faults = property(_give)


@pytest.mark.parametrize("title", [RuntimeError("no"), None, 3, b"a", "", "a\nb", "\ud800", "\x1b[2J", "a" * 501])
def test_invalid_title_is_replaced_by_the_name_of_the_class(title):
    assert runtime_title(Odd(title)) == "Odd"


@pytest.mark.parametrize("count", [RuntimeError("no"), None, "3", 1.0, math.nan, True, -1, 10**400, [1]])
def test_invalid_number_of_wrong_sums_counts_as_none(count):
    assert kernel_faults(Odd(count)) == 0


def test_engine_without_the_property_finds_no_wrong_sums():
    assert kernel_faults(Engine()) == 0
    assert kernel_faults(Odd(3)) == 3
    assert runtime_title(Odd("kernel (1)")) == "kernel (1)"
