"""What one core answers: `/classify` requests a second by the length of their text, for sizing (k8s/README.md).

    python loadtest/capacity.py [MODEL ...]

Counts requests for each second of CPU time that the server's processes took, all of it: HTTP, tokens, network. Unlike
requests by the clock this hardly depends on what else the machine does. `--callers` ask in a closed loop, so that
batches form as they do under load. A text of N tokens is N - 2 words of one token each, between [CLS] and [SEP].
"""

from __future__ import annotations

import argparse
import asyncio
import json

from loadtest.generator import Client, closed_loop, payload
from loadtest.server_process import Served, cpu_seconds, serving
from swiftlet_serve.service.offline.environment import setting

LENGTHS = (16, 32, 64, 128, 256, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["albert-sst2", "mobilebert-sst2"])
    parser.add_argument("--engine", default="native")
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=6)
    arguments = parser.parse_args()

    print(f"{setting().told()} {arguments.engine}, closed loop of {arguments.callers}, {arguments.seconds:g} s each\n")
    print("| model | " + " | ".join(f"{length} tokens" for length in LENGTHS) + " | memory |")
    print("|---" * (len(LENGTHS) + 2) + "|")
    for model in arguments.models:
        with serving([model], arguments.engine, "--cores", "1", "--timeout-ms", "60000") as server:
            rates = [asyncio.run(measure(server, n, arguments.callers, arguments.seconds)) for n in LENGTHS]
            memory = server.resident_kib() / 1024
        print(f"| {model} | " + " | ".join(f"{rate:.0f}" for rate in rates) + f" | {memory:.0f} MiB |", flush=True)


async def measure(server: Served, tokens: int, callers: int, seconds: float) -> float:
    """Requests for each second of CPU time."""
    client, answered = Client(server.port), 0
    request = payload("/classify", json.dumps({"inputs": " ".join(["film"] * (tokens - 2))}).encode())

    async def ask(_: float) -> None:
        nonlocal answered
        answer = await client.ask(request)
        if answer.status != 200:
            raise SystemExit(f"not answered: {answer.body.decode()}")
        answered += 1

    await closed_loop(callers, seconds / 4, ask)  # warm-up: what calls take is learned
    answered, before = 0, cpu_seconds(server.process.pid)
    await closed_loop(callers, seconds, ask)
    client.close()
    return answered / (cpu_seconds(server.process.pid) - before)


if __name__ == "__main__":
    main()
