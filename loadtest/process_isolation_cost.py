"""Measures the cost of running an engine in its own process: the same calls to a thread and to a process.

    python -m loadtest.process_isolation_cost

The engine does nothing, so that only the transport is measured. A socket pair connects to the process. The numbers are
either sent as raw bytes, or left in shared memory and announced by a message on the socket. Rounds alternate between
the transports, on one event loop (uvloop), one call at a time.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray

from swiftlet_serve.telemetry.percentile import percentile

ROUNDS, CALLS = 20, 100
SHARED_BYTES = 1 << 20
RESULT_OFFSET = 1 << 18  # of the shared memory
CASES = {  # tokens in, floats out
    "classify, 1 x 16 tokens": (16, 2),
    "qa, 1 x 384 tokens": (384, 768),
    "fill-mask, 1 x 32 tokens, vocabulary of 8,000": (32, 8_000),
    "fill-mask, 1 x 32 tokens, vocabulary of 30,000": (32, 30_000),
}


def engine(numbers: NDArray[Any], outputs: int) -> NDArray[np.float32]:
    """Returns the row of an engine that takes no time."""
    return np.full(outputs, numbers[0], np.float32)


def child(sock: socket.socket, shared: mmap.mmap, outputs: int) -> None:
    """Answers calls until the parent closes the socket. A call of length 0 is in the shared memory."""
    while True:
        head = sock.recv(8, socket.MSG_WAITALL)
        if len(head) < 8:
            return
        length = int.from_bytes(head, "little")
        if length:
            body = bytearray(length)
            sock.recv_into(body, length, socket.MSG_WAITALL)
            row = engine(np.frombuffer(body, np.int64), outputs)
            sock.sendall(row.nbytes.to_bytes(8, "little"))
            sock.sendall(row.data)
        else:
            tokens = int(np.frombuffer(shared, np.int64, 1)[0])
            numbers = np.frombuffer(shared, np.int64, 3 * tokens, 8).copy()
            np.frombuffer(shared, np.float32, outputs, RESULT_OFFSET)[:] = engine(numbers, outputs)
            sock.sendall(head)


async def receive(loop: asyncio.AbstractEventLoop, sock: socket.socket, length: int) -> bytearray:
    body = bytearray(length)
    view, received = memoryview(body), 0
    while received < length:
        received += await loop.sock_recv_into(sock, view[received:])
    return body


async def measure(tokens: int, outputs: int) -> dict[str, list[float]]:
    """Returns the seconds of each call, by transport."""
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    memory = os.memfd_create("rows")
    os.ftruncate(memory, SHARED_BYTES)
    shared = mmap.mmap(memory, SHARED_BYTES)
    command = [sys.executable, "-m", "loadtest.process_isolation_cost", *map(str, (far.fileno(), memory, outputs))]
    process = subprocess.Popen(command, pass_fds=(far.fileno(), memory))
    far.close()
    near.setblocking(False)
    threads = ThreadPoolExecutor(1)
    encoding = np.arange(3 * tokens)  # ids, types and positions

    async def by_thread() -> NDArray[np.float32]:
        return await loop.run_in_executor(threads, engine, encoding, outputs)

    async def by_socket() -> NDArray[np.float32]:
        await loop.sock_sendall(near, encoding.nbytes.to_bytes(8, "little") + encoding.tobytes())
        head = await receive(loop, near, 8)
        return np.frombuffer(await receive(loop, near, int.from_bytes(head, "little")), np.float32)

    async def by_shared_memory() -> NDArray[np.float32]:
        np.frombuffer(shared, np.int64, 1)[0] = tokens
        np.frombuffer(shared, np.int64, len(encoding), 8)[:] = encoding
        await loop.sock_sendall(near, bytes(8))
        await receive(loop, near, 8)
        return np.frombuffer(shared, np.float32, outputs, RESULT_OFFSET).copy()

    transports: dict[str, Callable[[], Awaitable[NDArray[np.float32]]]] = {
        "thread": by_thread,
        "socket": by_socket,
        "shared memory": by_shared_memory,
    }
    seconds: dict[str, list[float]] = {name: [] for name in transports}
    for round_ in range(ROUNDS + 1):
        for name, call in transports.items():
            for _ in range(CALLS):
                started = time.perf_counter()
                row = await call()
                if round_:  # the first round warms up
                    seconds[name].append(time.perf_counter() - started)
                if len(row) != outputs:
                    raise SystemExit("A row has the wrong length.")
    near.close()
    process.wait()
    return seconds


def main() -> None:
    print("| one call, microseconds | thread p50 | p99 | socket p50 | p99 | shared memory p50 | p99 |")
    print("|---|---|---|---|---|---|---|")
    for name, (tokens, outputs) in CASES.items():
        seconds = uvloop.run(measure(tokens, outputs))
        cells = [f"{1e6 * percentile(own, share):.0f}" for own in seconds.values() for share in (0.5, 0.99)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        end, memory, outputs = map(int, sys.argv[1:])
        child(socket.socket(fileno=end), mmap.mmap(memory, SHARED_BYTES), outputs)
