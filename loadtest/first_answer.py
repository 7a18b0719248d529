"""Measures megabytes and seconds from an empty environment to the first right answer, by server and model directory.

    python -m loadtest.first_answer WORK --wheel dist/swiftlet_serve-*.whl --models DIRECTORY... [--servers NAME ...]

WORK gets a virtual environment for each server, which pip fills from the package index. One that is there is used
again, and its row has no seconds of installation. A model is a directory of sentence-transformers or a classifier of
transformers. The first answer is right if its vector has a cosine of at least 0.99 with that of sentence-transformers,
or the label of the pipeline. It is cold if the server has no cache of its own; files are in the page cache either way.
Warm starts are repeated, and the median is shown. CPU seconds are those of all processes of the server until the
answer.

fastembed reads ONNX files alone: `onnx/model.onnx` in the directory, which somebody has exported.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from loadtest.own_model_servers import SERVERS, Server, first_answer, install, megabytes, running
from loadtest.server_process import cpu_seconds
from swiftlet_models.task_inference import infer_task
from swiftlet_serve.offline.environment import current_environment

REFERENCE: Final = Path(__file__).with_name("reference_answers.py")
TEXT: Final = "A warm, funny and clever film."
LEAST_COSINE: Final = 0.99
HEADER: Final = """
| server | environment, MB | installed in, s (CPU s) | model | cold, s (CPU s) | warm, s (CPU s) |
|---|---|---|---|---|---|"""


def is_right(answer: Any, expected: Any) -> bool:
    if isinstance(expected, str):
        return bool(answer == expected)
    return bool(np.dot(answer, expected) >= LEAST_COSINE * np.linalg.norm(answer) * np.linalg.norm(expected))


def start(server: Server, environment: Path, model: Path, task: str, home: Path, expected: Any) -> tuple[float, float]:
    """Starts a server, and returns seconds and CPU seconds until its first answer.

    Raises:
        SystemExit: it ended, gave a wrong answer or none within the limit.
    """
    started = time.monotonic()
    with running(server, environment, model, home) as (process, port):
        answer = first_answer(server, process, port, task, TEXT)
        taken = time.monotonic() - started, cpu_seconds(process.pid)
    if not is_right(answer, expected):
        raise SystemExit("a wrong answer")
    return taken


def expectations(models: Sequence[Path], python: str) -> dict[Path, tuple[str, Any]]:
    """Returns the task of each model, with the vector or the label of the reference packages."""
    found: dict[Path, tuple[str, Any]] = {}
    for model in models:
        task = infer_task(model, str(model))
        with tempfile.NamedTemporaryFile("w") as file:
            print(json.dumps(TEXT), file=file, flush=True)
            command = [python, str(REFERENCE), str(model), task, file.name]
            answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        found[model] = task, answer[0]["label"] if task == "classify" else answer
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--servers", nargs="+", default=[*SERVERS], choices=SERVERS, metavar="NAME")
    parser.add_argument("--reference", default=sys.executable, metavar="PYTHON", help="with sentence-transformers")
    parser.add_argument("--warm", type=int, default=3, help="Number of warm starts.")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    models = expectations([model.resolve() for model in arguments.models], arguments.reference)
    print(f"{current_environment().description('')}\n{HEADER}", flush=True)
    for name in arguments.servers:
        server, environment = SERVERS[name], work / name
        try:
            facts = [install(server, environment, arguments.wheel)]
        except SystemExit as error:
            print(f"| {name} | – | {error} | – | – | – |", flush=True)
            continue
        facts.insert(0, f"{megabytes(environment):,.0f}")
        for model, (task, expected) in models.items():
            home = work / f"home-{name}-{model.name}"
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            if task not in server.paths:
                print(f"| {' | '.join([name, *facts, model.name, f'no {task}', '–'])} |", flush=True)
                continue
            try:
                runs = [start(server, environment, model, task, home, expected) for _ in range(1 + arguments.warm)]
                warm = [median(run[i] for run in runs[1:]) for i in (0, 1)]
                cells = [f"{seconds:.1f} ({cpu:.1f})" for seconds, cpu in (runs[0], warm)]
            except SystemExit as error:
                cells = [str(error), "–"]
            print(f"| {' | '.join([name, *facts, model.name, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
