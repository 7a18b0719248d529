"""Runs the stages of requests, for `request_cost`, which starts this file with the code of a working tree.

Each line of stdin names an artifact, a task and bodies. A line of stdout has the microseconds of each stage.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import swiftlet_models
from swiftlet_models.artifact import TOKENIZER, open_artifact
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import dump
from swiftlet_serve.inference import partial_results
from swiftlet_serve.types import Batch, BatchResult
from swiftlet_serve.workers import messages

REPEATS = 5  # of each request: the least disturbed run counts
BUNDLED = Path(swiftlet_models.__file__).parent / "bundled"


def run(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns the microseconds of each stage of one request, the mean over the bodies."""
    path = Path(line["artifact"])
    artifact = open_artifact(path if path.is_absolute() else BUNDLED / path)
    tokenizer = Tokenizer.load(artifact.path / TOKENIZER, artifact.manifest.reading)
    task = tasks.create(line["task"], tokenizer, artifact.manifest)
    engine, spent = Echo(artifact.manifest.width), dict[str, float]()
    for body in line["bodies"]:
        repeats = [_stages(task, engine, body) for _ in range(REPEATS)]
        for stage in repeats[0]:
            spent[stage] = spent.get(stage, 0) + min(each[stage] for each in repeats) / len(line["bodies"])
    return spent


def _stages(task: Any, engine: Echo, body: str) -> dict[str, float]:
    """Returns the microseconds of each stage of one request."""
    spent: dict[str, float] = {}

    def timed(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        before = time.process_time_ns()
        result = function(*arguments)
        spent[stage] = (time.process_time_ns() - before) / 1000
        return result

    request = timed("parse", bodies.parse, task.Request, body.encode())
    inputs = timed("encode", partial_results.encode, task, request)
    sequences = [sequence for input_ in inputs for sequence in input_.encodings]
    timed("pack", messages.pack_call, 1, 0, sequences)
    outcomes: list[Any] = list(engine.run(Batch.of(sequences)))
    message = messages.pack_result(1, BatchResult(outcomes, 0.0))
    _, result = timed("unpack", messages.unpack_result, memoryview(message)[messages.HEADER_BYTES :])
    answer = timed("decode", partial_results.decode, task, inputs, result.outcomes)
    timed("json", dump, answer)
    return spent


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
