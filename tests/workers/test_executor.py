"""Every encoding of a batch has an outcome of its own, whatever the engine does; an executor of threads gives them."""

from __future__ import annotations

import asyncio
import math
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.models.artifact import ArtifactError
from swiftlet_serve.service.engines.echo import Echo
from swiftlet_serve.service.errors import Internal, SetupError
from swiftlet_serve.service.topk import NOTHING, Ranked
from swiftlet_serve.service.types import Batch
from swiftlet_serve.service.workers.golden import replay
from swiftlet_serve.service.workers.hosted_model import ERROR_DETAILS, HostedModel, host_model, run_batch
from swiftlet_serve.service.workers.thread_executor import ThreadExecutor
from tests.support.artifacts import make_artifact
from tests.support.fakes import PATIENCE_S, WIDTH, Engine, GatedEngine, encoding, row_of


def codes(outcomes) -> list[str | None]:
    return [one.code if isinstance(one, Internal) else None for one in outcomes]


@given(st.integers(1, 33), st.sets(st.integers(0, 32)))
def test_only_those_fail_that_fail_alone(n, suspects):
    def answer(asked):
        if suspects & set(asked):
            raise RuntimeError("cannot")
        return [row_of(tag) for tag in asked]

    outcomes = run_batch(HostedModel(Engine(answer), WIDTH), Batch.of([encoding(tag) for tag in range(n)]))

    assert codes(outcomes) == ["internal" if tag in suspects else None for tag in range(n)]
    assert all(one.tolist() == row_of(tag).tolist() for tag, one in enumerate(outcomes) if tag not in suspects)


def test_a_failure_has_the_sentence_of_its_code():
    bad = [np.array([[tag, math.nan]], np.float32) for tag in range(2)]
    outcomes = run_batch(HostedModel(Engine(lambda _: bad), WIDTH), Batch.of([encoding(tag) for tag in range(2)]))

    assert [one.detail for one in outcomes] == [ERROR_DETAILS["invalid_engine_output"]] * 2


@pytest.mark.parametrize("column", [-1, 10, 2.0**33])
def test_a_column_that_is_none_is_no_answer(column):
    asked = Ranked(**vars(encoding(1)), top_k=1, candidates=NOTHING)
    rows = [np.array([[0.5, 0.25, place]], np.float32) for place in (9, column)]
    outcomes = run_batch(HostedModel(Engine(lambda _: rows), 10), Batch.of([asked, asked]))

    assert codes(outcomes) == [None, "invalid_engine_output"]


class Odd(Echo):
    """An engine that is off in one way, which its subclass says."""

    runs_network = True
    extra_tolerance = 0.0


class Wide(Odd):
    def run(self, batch):
        return Echo(self.width + 1).run(batch)


class Disorderly(Odd):
    def run(self, batch):
        rows = super().run(batch)
        return [-row if most else row for row, most in zip(rows, batch.top_k, strict=True)]


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Wide, r"a row of shape \(2, 4\), expected \(2, 3\)"), (Disorderly, "does not match its outputs")],
)
def test_a_model_is_not_hosted_whose_engine_is_off_where_golden_answers_do_not_look(tmp_path, kind, said):
    artifact = make_artifact(tmp_path, "classify")

    with pytest.raises(ArtifactError, match=f"cannot be replayed: .*{said}"):
        replay(artifact, kind(3))


def test_a_crew_of_threads_runs_as_many_calls_at_a_time_as_it_has_threads():
    async def scenario():
        engine = GatedEngine()
        executor = ThreadExecutor({"model": HostedModel(engine, WIDTH)}, size=2)
        work = [asyncio.ensure_future(executor.run("model", [encoding(tag)], PATIENCE_S)) for tag in range(2)]
        calls = [await engine.called() for _ in work]

        assert not await executor.close(0)
        for call in calls:
            call.finish()
        assert [[row.tolist() for row in outcomes] for outcomes, _ in await asyncio.gather(*work)] == [
            [row_of(tag).tolist()] for tag in range(2)
        ]
        assert await executor.close(0)

    asyncio.run(scenario())


def test_a_model_is_hosted_if_its_engine_answers_as_it_should(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    hosted, deviation = host_model(artifact, "onnx_cpu")

    assert (hosted.width, deviation) == (3, 0.0)
    assert len(hosted.timed_calls) == 2
    assert host_model(artifact, "echo") == ((ANY, 3, []), None)
    artifact.file("model.onnx").write_bytes(b"no")
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        host_model(artifact, "onnx_cpu")
    with pytest.raises(SetupError, match="no 'abacus'"):
        host_model(artifact, "abacus")
