"""What it costs to run an engine in a process of its own: the same calls to a thread and to a process, side by side.

    python loadtest/process_isolation_cost.py

The engine does nothing, so that what is measured is the way there and back. The process is asked over a socket pair,
with the numbers either sent as raw bytes or left in shared memory, where a byte on the socket says that they are
there. Rounds of the ways alternate, and all figures are of one event loop (uvloop), one call at a time.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import uvloop

ROUNDS, CALLS = 20, 100
SHARED_BYTES = 1 << 20
# tokens in, floats out
CASES = {
    "classify, 1 x 16 tokens": (16, 2),
    "qa, 1 x 384 tokens": (384, 768),
    "fill-mask, 1 x 32 tokens, 8,000 pieces": (32, 8_000),
    "fill-mask, 1 x 32 tokens, 30,000 pieces": (32, 30_000),
}


def engine(numbers: np.ndarray, out: int) -> np.ndarray:
    """The answer of an engine that takes no time."""
    return np.full(out, numbers[0], np.float32)


def child(sock: socket.socket, shared: mmap.mmap, out: int) -> None:
    """Answers calls until the parent goes: those of a byte through shared memory, all others through the socket."""
    while True:
        head = sock.recv(8, socket.MSG_WAITALL)
        if len(head) < 8:
            return
        length = int.from_bytes(head, "little")
        if length:
            body = bytearray(length)
            sock.recv_into(body, length, socket.MSG_WAITALL)
            rows = engine(np.frombuffer(body, np.int64), out)
            sock.sendall(rows.nbytes.to_bytes(8, "little"))
            sock.sendall(rows.data)
        else:
            tokens = int(np.frombuffer(shared, np.int64, 1)[0])
            numbers = np.frombuffer(shared, np.int64, 3 * tokens, 8).copy()
            np.frombuffer(shared, np.float32, out, 1 << 18)[:] = engine(numbers, out)
            sock.sendall(head)


async def receive(loop: asyncio.AbstractEventLoop, sock: socket.socket, length: int) -> bytearray:
    body = bytearray(length)
    view, got = memoryview(body), 0
    while got < length:
        got += await loop.sock_recv_into(sock, view[got:])
    return body


async def measure(tokens: int, out: int) -> dict[str, list[float]]:
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    memory = os.memfd_create("rows")
    os.ftruncate(memory, SHARED_BYTES)
    shared = mmap.mmap(memory, SHARED_BYTES)
    process = subprocess.Popen(
        [sys.executable, __file__, str(far.fileno()), str(memory), str(out)], pass_fds=(far.fileno(), memory)
    )
    far.close()
    near.setblocking(False)
    threads = ThreadPoolExecutor(1)
    encoding = np.arange(3 * tokens)  # ids, types and positions

    async def by_thread() -> np.ndarray:
        return await loop.run_in_executor(threads, engine, encoding, out)

    async def by_socket() -> np.ndarray:
        await loop.sock_sendall(near, encoding.nbytes.to_bytes(8, "little") + encoding.tobytes())
        head = await receive(loop, near, 8)
        return np.frombuffer(await receive(loop, near, int.from_bytes(head, "little")), np.float32)

    async def by_shared_memory() -> np.ndarray:
        np.frombuffer(shared, np.int64, 1)[0] = tokens
        np.frombuffer(shared, np.int64, len(encoding), 8)[:] = encoding
        await loop.sock_sendall(near, bytes(8))
        await receive(loop, near, 8)
        return np.frombuffer(shared, np.float32, out, 1 << 18).copy()

    ways = {"thread": by_thread, "socket": by_socket, "shared": by_shared_memory}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(ROUNDS + 1):
        for name, way in ways.items():
            for _ in range(CALLS):
                started = time.perf_counter()
                rows = await way()
                if round_:  # the first warms up
                    took[name].append(time.perf_counter() - started)
                if len(rows) != out:
                    raise SystemExit("an answer has the wrong length")
    near.close()
    process.wait()
    return took


def main() -> None:
    print("| one call, microseconds | thread p50 | p99 | socket p50 | p99 | shared memory p50 | p99 |")
    print("|---|---|---|---|---|---|---|")
    for name, (tokens, out) in CASES.items():
        took = uvloop.run(measure(tokens, out))
        cells = []
        for times in took.values():
            centiles = statistics.quantiles(times, n=100)
            cells += [f"{1e6 * centiles[49]:.0f}", f"{1e6 * centiles[98]:.0f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        end, memory, out = map(int, sys.argv[1:])
        child(socket.socket(fileno=end), mmap.mmap(memory, SHARED_BYTES), out)
