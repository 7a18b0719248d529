"""Threads with long work let the event loop have its turn after each piece."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from swiftlet_models.turns import giving_way, in_turns
from swiftlet_serve.http.endpoints.model_endpoint import dump
from swiftlet_serve.inference import partial_results
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.inference.text_threads import PATIENCE_S, PIECE_S, Turns, run_in_thread
from swiftlet_serve.types import Batch

MANY = 40


class Loop:
    """An event loop that has a turn at once, or is closed."""

    def __init__(self, *, closed: bool = False) -> None:
        self.turns, self._closed = 0, closed

    def call_soon_threadsafe(self, callback) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        self.turns += 1
        callback()


@pytest.mark.parametrize(("step_s", "turns"), [(PIECE_S / 8, MANY // 8), (PIECE_S, MANY), (0.0, 0)])
def test_the_loop_has_a_turn_after_each_piece_of_work(step_s, turns):
    loop, clock = Loop(), itertools.count()
    give_way = Turns(loop, lambda: next(clock) * step_s)  # type: ignore[arg-type]
    with giving_way(give_way):
        assert [*in_turns(range(MANY))] == [*range(MANY)]
    assert turns / 2 <= loop.turns <= turns


def test_a_closed_loop_keeps_no_thread():
    clock = itertools.count()
    Turns(Loop(closed=True), lambda: float(next(clock)))()  # type: ignore[arg-type]


async def test_a_busy_loop_keeps_a_thread_for_its_patience_only():
    """The loop has no turn before the thread has ended, and the thread ends."""
    turns, ended = Turns(asyncio.get_running_loop(), itertools.count().__next__), threading.Event()  # type: ignore[arg-type]

    def work() -> None:
        turns()
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert ended.wait(1000 * PATIENCE_S)  # which holds the loop
    thread.join()


async def test_only_threads_beside_a_loop_give_way():
    with ThreadPoolExecutor(1) as threads:
        items = await run_in_thread(threads, in_turns, range(3))
        assert [*items] == [0, 1, 2]
        assert not isinstance(items, range)
        assert await asyncio.get_running_loop().run_in_executor(threads, in_turns, range(3)) == range(3)
    assert in_turns(range(3)) == range(3)


REQUESTS = {
    "classify": ({"inputs": ["hello"] * MANY}, MANY),
    "fill-mask": ({"inputs": ["hello [MASK]"] * MANY}, MANY),
    "qa": ({"inputs": [{"question": "hello?", "context": f"hello {i}"} for i in range(MANY)]}, MANY),
}


@pytest.mark.parametrize("task", REQUESTS)
@pytest.mark.parametrize("partial", [False, True])
def test_long_requests_of_a_task_give_way_for_each_input(artifact_dir, task, partial):
    """Encoding, decoding and writing: none is one piece, whatever the number of inputs."""
    model = load_model(artifact_dir / f"tiny-{task}", "echo")
    body, count = REQUESTS[task]
    request = model.task.Request.model_validate(body | {"partial": partial})
    ways = list[int]()

    def counted(function, *arguments):
        calls = itertools.count()
        with giving_way(lambda: next(calls)):  # type: ignore[arg-type, return-value]
            result = function(*arguments)
        ways.append(next(calls))
        return result

    inputs = counted(partial_results.encode, model.task, request)
    rows = model.engine.run(Batch.of([each for input_ in inputs for each in input_.encodings]))
    answer = counted(partial_results.decode, model.task, inputs, [np.asarray(row) for row in rows])
    counted(dump, answer * 4)
    assert ways[0] >= count
    assert ways[1] >= count
    assert ways[2] >= 4 * count // 64
