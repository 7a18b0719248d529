"""Measures the CPU time of a request by task: before the network, after it, and of the whole server without a network.

    python -m loadtest.request_cost [--before TREE] [--only CASE ...] [--out FILE]

The stages run in a process of their own, in the order of a request: parsing, encoding, packing for the worker process,
unpacking the rows, decoding and writing the JSON. The rows are those of the engine `echo`. Then a server with this
engine gets the same requests, and the CPU time of its processes is read. With `--before`, the same is measured with the
code in another working tree, in turn. Of several rounds the least disturbed one counts.

Most models are bundled. Those of the other tasks are made with random weights, which needs torch and takes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import swiftlet_models
from loadtest.generator import send_all
from loadtest.server_process import ROOT, ServerProcess, cpu_by_role, serving
from loadtest.workload import default_workload
from swiftlet_models.artifact import Head
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.offline.environment import current_environment

CALLERS: Final = 32
BODIES: Final = 100  # of a case, in turn
SCORED: Final = 1200  # bytes of a text to score, which must fit the model
BUNDLED: Final = Path(swiftlet_models.__file__).parent / "bundled"
NAMES: Final = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
SMALL: Final[Mapping[str, tuple[Head, str, tuple[str, ...], Mapping[str, int]]]] = {
    "entities": ("token", "albert", NAMES, {"embedding_size": 128, "hidden_size": 384, "num_attention_heads": 12}),
    "score": ("causal_lm", "gpt2", (), {"n_embd": 384, "n_layer": 2, "n_head": 12}),
}
"""Models of tasks without a bundled one, by task: head, architecture, labels and sizes."""
STAGES: Final = ("parse", "encode", "pack", "unpack", "decode", "json")


class Case(NamedTuple):
    """Requests of one task to one model."""

    model: str
    path: str
    bodies: Sequence[bytes]


def cases() -> dict[str, Case]:
    """Returns the cases by name. A model that is not bundled comes from `SMALL`."""
    embed = [json.loads(body.data)["inputs"] for body in default_workload(64 * 8, 1, ["/embed"])]
    batches = [embed[start : start + 64] for start in range(0, len(embed), 64)]

    def drawn(path: str) -> list[bytes]:
        return [body.data for body in default_workload(BODIES, 1, [path])]

    def many(**parameters: object) -> list[bytes]:
        return [json.dumps({"inputs": texts, "parameters": parameters}).encode() for texts in batches]

    return {
        "classify": Case("albert-sst2", "/classify", drawn("/classify")),
        "qa": Case("albert-qa", "/qa", drawn("/qa")),
        "fill-mask": Case("albert-fill-mask", "/fill-mask", drawn("/fill-mask")),
        "entities": Case("entities", "/entities", drawn("/entities")),
        "zero-shot, 3 labels": Case("mobilebert-embed", "/zero-shot", drawn("/zero-shot")),
        "rerank, 10 texts": Case("mobilebert-embed", "/rerank", drawn("/rerank")),
        "score": Case("score", "/score", [body for body in drawn("/score") if len(body) < SCORED]),
        "embed, 1 text": Case("mobilebert-embed", "/embed", drawn("/embed")),
        "embed, 64 texts": Case("mobilebert-embed", "/embed", many()),
        "embed, 64 texts, base64": Case("mobilebert-embed", "/embed", many(encoding_format="base64")),
    }


def make_small(name: str, directory: Path) -> str:
    """Returns the path of a model with random weights and the vocabulary of a bundled one, which it makes."""
    from swiftlet_models.artifact import TOKENIZER, Manifest
    from swiftlet_models.heads import build, weights_of
    from swiftlet_models.tokenizer import Tokenizer
    from swiftlet_serve.offline.draft import Draft
    from swiftlet_serve.offline.release import release

    tokenizer = Tokenizer.load(BUNDLED / "albert-sst2" / TOKENIZER)
    head, architecture, labels, sizes = SMALL[name]
    config = {"vocab_size": tokenizer.vocab_size, **sizes}
    manifest = Manifest(
        name=name,
        version="0",
        architecture=architecture,
        task=name,
        head=head,
        precision="int8",
        max_tokens=512,
        vocab_size=tokenizer.vocab_size,
        width=len(labels) or tokenizer.vocab_size,
        labels=labels,
        problem=None,
        tolerance=1.0,
        config=config,
        source={"weights": "random"},
    )
    weights = weights_of(build(architecture, config, head, manifest.width))
    release(Draft(weights, tokenizer, manifest, {"summary": "Random weights."}), directory / name)
    return str(directory / name)


class Stages:
    """A process that runs the stages of requests with the code of one working tree."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def of(cls, tree: Path) -> Iterator[Stages]:
        """Runs the process."""
        command = [sys.executable, str(Path(__file__).with_name("request_stages.py"))]
        environment = os.environ | {"PYTHONPATH": python_path(tree)}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def measure(self, case: Case, artifact: str) -> dict[str, float]:
        """Returns the microseconds of each stage of a request."""
        message = {"artifact": artifact, "task": case.path[1:], "bodies": [body.decode() for body in case.bodies]}
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018  # both are pipes
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer


def python_path(tree: Path) -> str:
    """Returns the import roots of a working tree."""
    return os.pathsep.join(map(str, (tree / "service", tree / "models")))


async def server_cost_us(server: ServerProcess, case: Case, seconds: float) -> tuple[float, float]:
    """Returns the microseconds of CPU time of a request, of the HTTP process and of the engine's.

    Raises:
        SystemExit: a request was not answered with 200.
    """
    client, ends = Client(server.url), time.monotonic() + seconds
    requests = [request_bytes(case.path, body) for body in case.bodies]
    answered, before = 0, cpu_by_role(server.pid)

    async def send(request: bytes) -> None:
        nonlocal answered
        response = await client.send(request)
        if response.status != 200:
            raise SystemExit(f"{case.path} was answered with {response.status}.")
        answered += 1

    await send_all(itertools.takewhile(lambda _: time.monotonic() < ends, itertools.cycle(requests)), send, CALLERS)
    client.close()
    after = cpu_by_role(server.pid)
    http, engine = (1e6 * (after[role] - before[role]) / answered for role in ("server", "engine"))
    return http, engine


def row(name: str, found: Mapping[str, dict[str, float]]) -> Iterator[str]:
    """Yields a row of the table for each working tree."""
    for tree, us in found.items():
        around = us["http"] - sum(us[stage] for stage in STAGES)
        cells = [name, tree, *(f"{us[stage]:.0f}" for stage in (*STAGES, "http", "engine"))]
        yield f"| {' | '.join([*cells[:8], f'{around:.0f}', *cells[8:]])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="Another working tree to compare with.")
    parser.add_argument("--only", nargs="+", default=list(cases()), choices=list(cases()), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="Duration of a round of a server. Default: 1.")
    parser.add_argument("--out", type=Path, help="File for the table.")
    arguments = parser.parse_args()
    trees = {"now": ROOT} if arguments.before is None else {"before": arguments.before.resolve(), "now": ROOT}
    lines = [
        f"{current_environment('tokenizers').description()} Echo engine, {CALLERS} callers. CPU time in µs.\n",
        f"| request | code | {' | '.join(STAGES)} | the rest | HTTP process | engine's process |",
        f"|{'---|' * (len(STAGES) + 5)}",
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as made:
        for name in arguments.only:
            case = cases()[name]
            model = make_small(case.model, Path(made)) if case.model in SMALL else case.model
            best = {tree: dict[str, float]() for tree in trees}
            with ExitStack() as stack:
                stages = {tree: stack.enter_context(Stages.of(path)) for tree, path in trees.items()}
                servers = {
                    tree: stack.enter_context(
                        serving([model], "echo", "--log-level", "error", environment={"PYTHONPATH": python_path(path)})
                    )
                    for tree, path in trees.items()
                }
                for number in range(arguments.rounds + 1):  # the first is the warm-up
                    for tree in trees:
                        us: dict[str, Any] = stages[tree].measure(case, model)
                        us["http"], us["engine"] = asyncio.run(server_cost_us(servers[tree], case, arguments.seconds))
                        if number:
                            best[tree] = {key: min(value, best[tree].get(key, value)) for key, value in us.items()}
            for line in row(name, best):
                lines.append(line)
                print(line, flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
