"""The executor that runs batches on threads."""

from __future__ import annotations

import asyncio

from swiftlet_serve.workers.hosted_model import EngineModel
from swiftlet_serve.workers.thread_executor import ThreadExecutor
from tests.support.fakes import PATIENCE_S, WIDTH, Engine, ManualEngine, encoding, row_of


async def test_thread_executor_runs_one_call_per_thread_at_the_same_time():
    engine = ManualEngine()
    executor = ThreadExecutor({"model": EngineModel(engine, [WIDTH])}, size=2)
    running = [asyncio.ensure_future(executor.run("model", [encoding(tag)], PATIENCE_S)) for tag in range(2)]
    calls = [await engine.called() for _ in running]

    assert not await executor.close(0)
    for call in calls:
        call.finish()
    assert [[row.tolist() for row in outcomes] for outcomes, *_ in await asyncio.gather(*running)] == [
        [row_of(tag).tolist()] for tag in range(2)
    ]
    assert await executor.close(0)


def test_thread_executor_counts_wrong_sums_once_and_never_backwards():
    engines = [Engine(), Engine(), Engine()]
    executor = ThreadExecutor({str(n): EngineModel(engine, [WIDTH]) for n, engine in enumerate(engines)}, size=1)
    counts = []
    for found in (0, 2, 1, 3):
        for engine in engines[1:]:  # each counts for the whole process
            engine.kernel_faults = found
        engines[1].title = f"fake ({found})"
        counts.append((executor.kernel_faults, executor.runtime("1")))

    assert counts == [(0, "fake (0)"), (2, "fake (2)"), (2, "fake (1)"), (3, "fake (3)")]
