"""Measures the coordinator's CPU time for a request, and simulates more fronts and requests than a machine has.

    python -m loadtest.front_cost [--out FILE]

A process stands for the fronts: it writes requests to real socket pairs, some at a time, and reads the results. The
coordinator's own code answers them, over an executor without an engine. Its CPU time, for different numbers of fronts
and of requests in a write, gives the costs of `coordinator_simulation`, by non-negative least squares.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import uvloop

from loadtest.coordinator_simulation import Costs, simulate
from swiftlet_models.encodings import Encoding
from swiftlet_serve.fronts import messages
from swiftlet_serve.fronts.channel import Channel
from swiftlet_serve.fronts.front_requests import FrontRequests
from swiftlet_serve.fronts.messages import HEADER, Kind, Submission
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.types import BatchResult, Cost, TimedCall
from swiftlet_serve.workers import messages as worker_messages

TOKENS: Final = 12  # of a request, as the text of `front_scaling` has
REQUESTS: Final = 6_000  # of a case
CASES: Final = tuple(itertools.product((1, 2, 4, 16, 64), (1, 2, 8, 32)))  # fronts, requests in a write
CALLS: Final = 4  # at a time


class InstantExecutor:
    """Answers each batch in the next iteration, after the work that a message to a worker process takes."""

    size = CALLS
    ready = True
    calls = 0

    def cost(self, model: str) -> Cost:  # noqa: ARG002  # there is one model
        return Cost(padded=False, call_tokens=0, max_tokens=4096, max_rows=64)

    def timed_calls(self, model: str) -> Sequence[TimedCall]:  # noqa: ARG002
        return ()

    def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> asyncio.Future[BatchResult]:  # noqa: ARG002
        self.calls += 1
        worker_messages.pack_call(1, 0, encodings)
        result = worker_messages.pack_result(1, BatchResult([np.ones((1, 2), np.float32) for _ in encodings], 0.0))
        future: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self._end, future, result)
        return future

    @staticmethod
    def _end(future: asyncio.Future[BatchResult], message: bytes) -> None:
        _, result = worker_messages.unpack_result(memoryview(message)[worker_messages.HEADER_BYTES :])
        future.set_result(result)


def measure(fronts: int, together: int) -> tuple[list[float], float]:
    """Returns the numbers of iterations, reads and writes, requests and calls of one case, and its CPU seconds."""
    return uvloop.run(_measure(fronts, together))


async def _measure(fronts: int, together: int) -> tuple[list[float], float]:
    executor: Any = InstantExecutor()
    dispatcher = Dispatcher(executor)
    dispatcher.add_model("model")
    runtime: Any = SimpleNamespace(
        dispatcher=dispatcher, admission=AdmissionController(dispatcher.load, 1 << 20), rate_limiter=None
    )
    pairs = [socket.socketpair() for _ in range(fronts)]
    rounds = max(4, REQUESTS // (fronts * together))
    ends = [far for _, far in pairs]
    driver = multiprocessing.get_context("fork").Process(target=_drive, args=(ends, together, rounds))
    driver.start()
    for end in ends:
        end.close()
    for near, _ in pairs:
        await _serve(runtime, near)
    before = time.thread_time()
    await asyncio.to_thread(driver.join)
    seconds = time.thread_time() - before
    reads = rounds * fronts
    return [rounds, reads, reads * together, executor.calls], seconds


async def _serve(runtime: Any, near: socket.socket) -> None:
    """Connects the requests of one front."""
    channels: list[Channel] = []
    requests = FrontRequests(runtime, ["model"], lambda message: channels[0].send(message))

    def handle(kind: Kind, number: int, body: memoryview) -> None:
        if not channels:  # it is being opened
            asyncio.get_running_loop().call_soon(handle, kind, number, body)
            return
        requests.submit(number, body)

    channels.append(await Channel.open(near, handle, lambda: None))


def _drive(ends: Sequence[socket.socket], together: int, rounds: int) -> None:
    """Writes requests to all sockets at once, waits for all results, and so on."""
    encoding = Encoding(np.arange(TOKENS), np.zeros(TOKENS, np.int64), np.zeros(1, np.int64))
    numbers = itertools.count(1)
    for _ in range(rounds):
        submission = Submission(0, [encoding], time.monotonic() + 100, "interactive", "")
        for end in ends:
            end.sendall(b"".join([messages.pack_submission(next(numbers), submission)[0] for _ in range(together)]))
        for end in ends:
            _read_results(end, together)


def _read_results(end: socket.socket, count: int) -> None:
    received = b""
    while count:
        if not (data := end.recv(1 << 20)):
            raise ConnectionError("the engine's process ended.")
        received += data
        while len(received) >= HEADER.size and len(received) >= (size := HEADER.unpack_from(received)[0]):
            count -= HEADER.unpack_from(received)[1] == Kind.RESULT
            received = received[size:]


def fit(cases: Sequence[tuple[list[float], float]]) -> tuple[Costs, float]:
    """Returns the costs that explain the measurements, and the largest relative error of a case."""
    counts = np.array([case for case, _ in cases])
    seconds = np.array([seconds for _, seconds in cases])
    weighted, ones = counts / seconds[:, None], np.ones(len(seconds))
    columns = list(range(counts.shape[1]))
    while True:  # without costs that come out negative
        solution, *_ = np.linalg.lstsq(weighted[:, columns], ones, rcond=None)
        if (solution >= 0).all():
            break
        del columns[int(solution.argmin())]
    costs = np.zeros(counts.shape[1])
    costs[columns] = solution
    return Costs(*costs.tolist()), float(np.abs(weighted @ costs - 1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="File for the tables.")
    arguments = parser.parse_args()
    measured: dict[tuple[int, int], tuple[list[float], float]] = {}
    for _ in range(arguments.rounds):
        for case in CASES:
            timing = measure(*case)
            if case not in measured or timing[1] < measured[case][1]:  # the least disturbed round
                measured[case] = timing
    costs, error = fit(list(measured.values()))
    lines = [
        f"{current_environment().description()}\n",
        "| fronts | requests in a write | us for each request | requests in a call |",
        "|---|---|---|---|",
        *(
            f"| {fronts} | {together} | {1e6 * seconds / counts[2]:.1f} | {counts[2] / counts[3]:.1f} |"
            for (fronts, together), (counts, seconds) in measured.items()
        ),
        "",
        f"Costs in us: iteration {1e6 * costs.iteration:.1f}, channel {1e6 * costs.channel:.1f}, "
        f"request {1e6 * costs.request:.1f}, call {1e6 * costs.call:.1f}; largest error of a case {100 * error:.0f} %.",
        "",
        "| fronts | requests/s offered | answered | coordinator busy | p50 | p99 | requests in a call |",
        "|---|---|---|---|---|---|---|",
    ]
    for fronts in (1, 2, 4, 8, 16, 32, 64):
        for rate in (2_000, 5_000, 10_000, 20_000, 40_000, 100_000):
            if rate / fronts > 6_000 or rate / fronts < 200:  # more than a front can do, or next to nothing
                continue
            result = simulate(costs, fronts, rate, calls=16, call_s=1e-3, row_s=20e-6)
            lines.append(
                f"| {fronts} | {rate:,} | {result.rate:,.0f} | {100 * result.busy:.0f} % "
                f"| {1e3 * result.p50_s:.1f} ms | {1e3 * result.p99_s:.1f} ms | {result.per_call:.1f} |"
            )
    text = "\n".join(lines)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
