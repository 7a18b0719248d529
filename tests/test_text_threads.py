"""Threads with long work let the event loop have its turn after each piece."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from swiftlet_models.turns import giving_way, in_turns
from swiftlet_serve import tasks
from swiftlet_serve.http.endpoints.bodies import PART, parse
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
    assert turns / 2 <= turns_of(step_s, waits_s=0.0) <= turns


def test_the_time_that_a_thread_waits_is_no_work():
    """The loop, or another program, has run meanwhile."""
    assert turns_of(PIECE_S / 8, waits_s=10 * PIECE_S) <= MANY // 8


def turns_of(step_s: float, waits_s: float) -> int:
    """Returns how many turns a loop has while a thread works for a time before each item, and waits."""
    loop, step = Loop(), itertools.count()
    worked = 0.0

    def items():
        nonlocal worked
        for item in range(MANY):
            yield item
            worked += step_s
            next(step)

    turns = Turns(loop, lambda: worked + next(step) * waits_s, lambda: worked)  # type: ignore[arg-type]
    with giving_way(turns):
        assert [*in_turns(items())] == [*range(MANY)]
    return loop.turns


def test_a_closed_loop_keeps_no_thread():
    clock = itertools.count()
    Turns(Loop(closed=True), lambda: float(next(clock)), lambda: float(next(clock)))()  # type: ignore[arg-type]


async def test_a_busy_loop_keeps_a_thread_for_its_patience_only():
    """The loop has no turn before the thread has ended, and the thread ends."""
    clock, ended = itertools.count().__next__, threading.Event()
    turns = Turns(asyncio.get_running_loop(), clock, clock)  # type: ignore[arg-type]

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


def count_turns(function, *arguments):
    """Returns how often a function gives way on a thread, and its result."""
    calls = itertools.count()
    with giving_way(lambda: next(calls)):  # type: ignore[arg-type, return-value]
        result = function(*arguments)
    return next(calls), result


def test_a_large_body_is_read_in_parts():
    body = json.dumps({"inputs": ["," * PART] * 4}).encode()
    turns, request = count_turns(parse, tasks.load("classify").TASK.Request, body)
    assert request.inputs == ["," * PART] * 4
    assert turns >= 4


def test_the_answers_to_one_question_give_way_for_each_window(artifact_dir):
    model = load_model(artifact_dir / "tiny-qa", "echo")
    sample = {"question": "hello?", "context": "hello " * MANY}
    request = model.task.Request.model_validate({"inputs": sample, "parameters": {"max_seq_len": 12, "doc_stride": 1}})
    (input_,) = partial_results.encode(model.task, request)
    rows = model.engine.run(Batch.of(input_.encodings))
    turns, _ = count_turns(partial_results.decode, model.task, [input_], [np.asarray(row) for row in rows])
    assert turns >= len(rows) > 4


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
        turns, result = count_turns(function, *arguments)
        ways.append(turns)
        return result

    inputs = counted(partial_results.encode, model.task, request)
    rows = model.engine.run(Batch.of([each for input_ in inputs for each in input_.encodings]))
    answer = counted(partial_results.decode, model.task, inputs, [np.asarray(row) for row in rows])
    counted(dump, answer * 4)
    assert ways[0] >= count * (1 + partial)  # parting a request, and encoding
    assert ways[1] >= count
    assert ways[2] >= 4 * count // 64
