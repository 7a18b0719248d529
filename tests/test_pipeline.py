"""A pipeline answers a request completely and in time, or not at all."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import DeadlineExceeded, Internal, TooManyRequests, Unprocessable
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks.classify import ClassifyRequest
from swiftlet_serve.tasks.qa import QaRequest
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.fakes import soon


def make_pipeline(
    artifact_dir: Path, task: str, submit, max_tokens: int = 1000, minimum_s=lambda lengths: 0.0
) -> Pipeline:
    """Returns a pipeline over an idle executor. `submit(encoding, deadline)` answers each of its sequences.

    `minimum_s` predicts the time of some lengths.
    """

    class Answers:
        def submit(self, encodings, deadline, priority, record):
            return [submit(encoding, deadline) for encoding in encodings]

        def minimum_s(self, lengths):
            return minimum_s(lengths)

    model = load_model(artifact_dir / f"tiny-{task}", "echo")
    return Pipeline(model, Answers(), ThreadPoolExecutor(1), Settings(max_queued_tokens=max_tokens))


async def test_pipeline_records_every_stage_and_counts_the_request(artifact_dir):
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), cores=1))
    pipeline, body = runtime.pipelines["tiny-classify"], ClassifyRequest(inputs="hello")
    record = RequestRecord(model="tiny-classify")
    answer = await pipeline.answer(body, soon(), record=record)
    await runtime.close()

    assert {one["label"] for one in answer[0]} == {"bad", "good", "neither"}
    assert list(record.stages) == ["encode", "queue", "batch", "infer", "decode"]
    assert (record.accepted, record.sequences, record.tokens) == (True, 1, 7)
    assert next(iter(runtime.stats.copy().models.values())).accepted == 1
    assert runtime.draining


async def test_tokens_are_checked_again_once_a_request_is_encoded(artifact_dir):
    """Of requests whose heads were admitted together, those after a large one do not run."""

    models = (str(artifact_dir / "tiny-classify"),)
    runtime = LocalRuntime.load(Settings(models=models, cores=1, client_token_rate_limit=0.01))
    pipeline, body = runtime.pipelines["tiny-classify"], ClassifyRequest(inputs="hello")
    first, second, other = (RequestRecord(model="tiny-classify", account=client) for client in "aab")
    runtime.rate_limiter.begin("a", time.monotonic())
    runtime.rate_limiter.begin("a", time.monotonic())
    await pipeline.answer(body, soon(), record=first)
    with pytest.raises(TooManyRequests):
        await pipeline.answer(body, soon(), record=second)
    await pipeline.answer(body, soon(), record=other)
    await runtime.close()

    assert [one.accepted for one in (first, second, other)] == [True, False, True]


@pytest.mark.parametrize(
    ("inputs", "has_word_pieces", "inline"),
    [
        ("a" * 300, False, True),
        ("a" * 301, False, False),
        ("a" * 4000, True, True),
        ("a" * 4001, True, False),
        ("a" * 300 + "é", True, False),
        (["a" * 150] * 3, True, False),
    ],
)
async def test_only_what_is_encoded_quickly_is_encoded_in_the_event_loop(
    artifact_dir, monkeypatch, inputs, has_word_pieces, inline
):
    """The rest is encoded on a thread, so that other requests are not kept waiting."""
    pipeline = make_pipeline(artifact_dir, "classify", lambda encoding, deadline: answered())
    monkeypatch.setattr(Tokenizer, "reads_ascii_quickly", has_word_pieces)
    encode, threads = pipeline.model.task.encode, []

    def spy(request):
        threads.append(threading.current_thread())
        return encode(request)

    monkeypatch.setattr(pipeline.model.task, "encode", spy)
    await pipeline.answer(ClassifyRequest(inputs=inputs), soon())

    assert [thread is threading.current_thread() for thread in threads] == [inline] * len(threads) != []


async def answered():
    return np.zeros((1, 3), np.float32)


async def test_pipeline_cancels_the_other_sequences_if_one_fails(artifact_dir):
    calls, cancelled = [], []

    async def submit(encoding, deadline):
        calls.append(encoding)
        if len(calls) == 3:
            raise Internal("internal", "The engine failed.")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(encoding)
            raise

    context = "one two three four five six seven eight nine ten " * 4
    with pytest.raises(Internal):
        await make_pipeline(artifact_dir, "qa", submit).answer(
            QaRequest.model_validate({"inputs": {"question": "which?", "context": context}}), soon()
        )
    await asyncio.sleep(0)

    assert len(cancelled) == len(calls) - 1 > 2


async def test_pipeline_raises_at_the_deadline(artifact_dir):
    async def submit(encoding, deadline):
        await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded):
        await make_pipeline(artifact_dir, "classify", submit).answer(
            ClassifyRequest(inputs="hello"), time.monotonic() + 0.02
        )


async def test_pipeline_rejects_a_request_that_could_never_be_admitted(artifact_dir):
    async def submit(encoding, deadline):
        raise AssertionError("nothing may be submitted")

    with pytest.raises(Unprocessable) as refusal:
        await make_pipeline(artifact_dir, "classify", submit, max_tokens=4).answer(
            ClassifyRequest(inputs="hello"), soon()
        )

    assert refusal.value.code == "input_too_long"
    assert refusal.value.field_errors[0].limit == 4


@pytest.mark.parametrize(
    ("inputs", "limit", "words"),
    [
        ("abcdefgh", 4, "A text of more than 4 tokens takes longer on this server than the longest deadline"),
        (["a", "b", "c", "a"], 9, "A request of more than 9 tokens"),
    ],
)
async def test_pipeline_refuses_what_no_deadline_can_hold_before_it_is_queued(artifact_dir, inputs, limit, words):
    """Here a sequence takes 130 seconds for each token, or one core does for three tokens of several sequences."""

    def minimum_s(lengths):
        return max(130 * max(lengths), 65 * sum(lengths)) if len(lengths) == 1 else 65 * sum(lengths)

    pipeline = make_pipeline(artifact_dir, "classify", lambda *_: pytest.fail("it was queued"), minimum_s=minimum_s)
    with pytest.raises(Unprocessable, match=words) as refusal:
        await pipeline.answer(ClassifyRequest(inputs=inputs), soon())

    assert refusal.value.code == "input_too_long"
    assert [fault.limit for fault in refusal.value.field_errors] == [limit]
