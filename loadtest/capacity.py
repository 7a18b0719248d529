"""Measures `/classify` requests per second of CPU time, by the length of the text. For sizing (k8s/README.md).

    python -m loadtest.capacity [MODEL ...]

The CPU time of all server processes counts: HTTP, tokenizer and network. Unlike requests per second of wall time, the
result hardly depends on other work on the machine. A closed loop of `--callers` forms batches as a load does. A text of
N tokens is N - 2 words of one token each, between [CLS] and [SEP].
"""

from __future__ import annotations

import argparse
import asyncio
import json

from loadtest.generator import closed_loop
from loadtest.server_process import ServerProcess, cpu_seconds, resident_kib, serving
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.offline.environment import current_environment

LENGTHS = (16, 32, 64, 128, 256, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["albert-sst2", "mobilebert-sst2"])
    parser.add_argument("--engine", default="native")
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=6)
    arguments = parser.parse_args()

    print(
        f"{current_environment().description()} {arguments.engine}, "
        f"closed loop of {arguments.callers}, {arguments.seconds:g} s each\n"
    )
    print("| model | " + " | ".join(f"{length} tokens" for length in LENGTHS) + " | memory |")
    print("|---" * (len(LENGTHS) + 2) + "|")
    for model in arguments.models:
        with serving([model], arguments.engine, "--cores", "1", "--timeout-ms", "60000") as server:
            rates = [asyncio.run(measure(server, n, arguments.callers, arguments.seconds)) for n in LENGTHS]
            memory_mib = resident_kib(server.pid) / 1024
        print(f"| {model} | " + " | ".join(f"{rate:.0f}" for rate in rates) + f" | {memory_mib:.0f} MiB |", flush=True)


async def measure(server: ServerProcess, tokens: int, callers: int, seconds: float) -> float:
    """Returns the requests per second of CPU time.

    Raises:
        SystemExit: a request was not answered with 200.
    """
    client, answered = Client(server.url), 0
    request = request_bytes("/classify", json.dumps({"inputs": " ".join(["film"] * (tokens - 2))}).encode())

    async def send(_: float) -> None:
        nonlocal answered
        response = await client.send(request)
        if response.status != 200:
            raise SystemExit(f"A request was answered with {response.status}: {response.body.decode()}")
        answered += 1

    await closed_loop([send] * callers, seconds / 4)  # warm-up: the server learns its batch times
    answered, before = 0, cpu_seconds(server.pid)
    await closed_loop([send] * callers, seconds)
    client.close()
    return answered / (cpu_seconds(server.pid) - before)


if __name__ == "__main__":
    main()
