"""The record of a request with several sequences and batches."""

from __future__ import annotations

import asyncio

import numpy as np

from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.gated_runtime import make_gated_runtime


def test_record_keeps_the_slowest_sequence_of_a_stage():
    record = RequestRecord()
    record.add_stage("infer", 0.0, 2.0)
    record.add_stage("infer", 5.0, 6.0)

    assert record.stages["infer"].duration_s == 2.0


def test_record_keeps_the_size_of_the_largest_batch():
    record = RequestRecord()
    for size in (2, 5, 3):
        record.add_call(1.0, 2.0, 5.0, 2.0, size)

    assert record.batch_size == 5
    assert {stage: span.duration_s for stage, span in record.stages.items()} == {
        "queue": 1.0,
        "batch": 1.0,
        "infer": 2.0,
    }


async def test_batch_size_includes_sequences_of_other_requests(artifact_dir):
    """A call occupies the only core. The sequences queued behind it run in one batch."""

    runtime, engine = make_gated_runtime(artifact_dir)
    await runtime.open()
    pipeline = runtime.pipelines["tiny-classify"]
    deadline = asyncio.get_running_loop().time() + 1e6

    async def answer(inputs):
        record = RequestRecord(model="tiny-classify")
        await pipeline.answer(pipeline.model.task.Request(inputs=inputs), deadline, record=record)
        return record

    requests = [asyncio.ensure_future(answer("abc"))]
    calls = [await engine.called()]
    requests += [asyncio.ensure_future(answer(inputs)) for inputs in ("abc", ["abd", "abe"])]
    while (await runtime.snapshot()).queue.sequences < 3:
        await asyncio.sleep(0)
    calls[0].finish([np.zeros((1, 3), np.float32)])
    calls.append(await engine.called())
    calls[1].finish([np.zeros((1, 3), np.float32)] * 3)
    records = await asyncio.gather(*requests)
    await runtime.close()
    assert [(record.sequences, record.batch_size) for record in records] == [(1, 1), (1, 3), (2, 3)]
