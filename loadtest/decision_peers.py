"""Asks Swiftlet and other servers of System One's protocol the same questions: how often right, and for how much CPU.

    python -m loadtest.decision_peers [DATA]... [--model MODEL]... [--peer "sparrow-decider serve --port {port}"]...

Each text of the data (lines of JSON with `text` and `label`) is one request: a choice among all labels of its file. A
peer is a command with the place of its port. Servers answer one request at a time, and CPU time is told, so that other
work on the machine matters little. With the package jevbench installed, the coherence of the answers is told, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from loadtest.server_process import cpu_seconds, serving
from swiftlet_models import datasets, metrics
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes
from swiftlet_serve.telemetry.percentile import percentile

PATH: Final = "/v1/systemone"
START_S: Final = 60.0
WARM_UP: Final = 10
SUITE: Final = "examples"


def bodies(examples: Sequence[Any], labels: Sequence[str], model: str) -> Iterator[bytes]:
    """Yields a request for each example."""
    question = {
        "type": "choice",
        "instructions": "What is the text about?",
        "criteria": {label: label.replace("_", " ").replace(".", " ") for label in labels},
    }
    for example in examples:
        body = {"model": model, "state": example.text, "questions": {"q": question}, "truncation": True}
        yield request_bytes(PATH, json.dumps(body).encode())


async def ask(url: str, requests: Sequence[bytes]) -> tuple[list[str], list[float]]:
    """Returns the option that was chosen for each request, and the seconds that it took.

    Raises:
        SystemExit: a request was not answered with 200.
    """
    client, chosen, seconds = Client(url), list[str](), list[float]()
    for request in requests:
        started = time.perf_counter()
        response = await client.send(request)
        seconds.append(time.perf_counter() - started)
        if response.status != 200:
            raise SystemExit(f"A request was answered with {response.status}: {response.body[:300].decode()}")
        chosen.append(json.loads(response.body)["answers"]["q"]["choice"])
    client.close()
    return chosen, seconds


@contextmanager
def peer(command: str) -> Iterator[tuple[str, int]]:
    """Starts a peer on a free port, and yields its address and the ID of its process.

    Raises:
        SystemExit: it does not listen in time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(shlex.split(command.format(port=port)), stdout=subprocess.DEVNULL) as process:
        try:
            asyncio.run(_wait(port))
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.kill()


async def _wait(port: int) -> None:
    end = time.monotonic() + START_S
    client = Client(f"http://127.0.0.1:{port}")
    while time.monotonic() < end:
        try:
            await client.send(request_bytes("/", method="GET"))
        except (OSError, ConnectionLost):
            await asyncio.sleep(0.1)
        else:
            client.close()
            return
    raise SystemExit("A peer does not listen.")


def coherence(url: str, model: str) -> str:
    """Returns the overall score of jevbench, or a dash if it is not installed or a request was refused."""
    try:
        import jevbench
    except ImportError:
        return "–"
    found = jevbench.evaluate(jevbench.systemone(url + PATH, model), SUITE, cache=None)
    overall = found.scores["overall"]  # None if a relation could not be asked in full
    return "–" if overall is None else f"{100 * overall:.1f}"


def measure(name: str, url: str, pid: int, model: str, data: Sequence[Path], count: int) -> None:
    """Prints a line of the table for each file, and one of the coherence."""
    for file in data:
        examples = datasets.named(file)
        labels = sorted({str(example.label) for example in examples})
        sample = random.Random(0).sample(examples, min(count, len(examples)))
        requests = list(bodies(sample, labels, model))
        asyncio.run(ask(url, requests[:WARM_UP]))
        before = cpu_seconds(pid)
        chosen, seconds = asyncio.run(ask(url, requests))
        spent_ms = 1000 * (cpu_seconds(pid) - before) / len(requests)
        hits = sum(label == example.label for label, example in zip(chosen, sample, strict=True))
        score = metrics.share(hits, len(sample))
        told = f"{score.value:.1f} % ({score.low:.1f} to {score.high:.1f})"
        times = f"{spent_ms:.1f} ms | {1000 * percentile(seconds, 0.5):.1f} ms"
        print(f"| {name} | {file.name.partition('.')[0]}, {len(labels)} | {told} | {times} |", flush=True)
    print(f"| {name} | coherence | {coherence(url, model)} | | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", type=Path, help="files with texts and labels")
    parser.add_argument("--model", action="append", default=[], help="model that Swiftlet serves")
    parser.add_argument("--peer", action="append", default=[], help="command of another server")
    parser.add_argument("--count", type=int, default=300, help="texts of each file")
    arguments = parser.parse_args()
    print("| Server | Data, options | Right | CPU time | p50 |\n|---|---|---|---|---|")
    for model in arguments.model:
        with serving([model], "native", "--cores", "1", "--spare-engine", "false") as server:
            name = Path(model).name
            measure(f"Swiftlet, {name}", server.url, server.pid, name, arguments.data, arguments.count)
    for command in arguments.peer:
        with peer(command) as (url, pid):
            measure(Path(shlex.split(command)[0]).name, url, pid, "any", arguments.data, arguments.count)


if __name__ == "__main__":
    main()
