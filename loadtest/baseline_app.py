"""The application of the baselines that serve artifacts: FastAPI, and as many calls at once as the cores allow.

It tokenizes and decodes as Swiftlet does, and runs each sequence as a batch of its own. The differences that remain are
the engine, HTTP, queueing and batching.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from fastapi import Body, FastAPI

from swiftlet_serve.benchmark.baselines import Call
from swiftlet_serve.benchmark.networks import Network, artifact_network
from swiftlet_serve.inference.loading import locate, open_model
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import Batch

RUNS: Final = Path("runs/bench")

Load = Callable[[Network, int], Call]
"""Loads a network for calls of this number of threads."""


def create_app(artifacts: Sequence[str], load: Load, threads: int = 1) -> FastAPI:
    """`threads` are those of a call."""
    app, calls = FastAPI(), ThreadPoolExecutor(Settings().cores // threads)
    for artifact in artifacts:
        add_route(app, calls, artifact, load, threads)
    return app


def add_route(app: FastAPI, calls: ThreadPoolExecutor, artifact: str, load: Load, threads: int) -> None:
    """Adds the route of an artifact's task."""
    (path,) = locate([artifact])
    model = open_model(path, "onnx_cpu")
    call = load(artifact_network(model.artifact, RUNS, partial(print, file=sys.stderr)), threads)
    task = model.task

    def answer(body: dict[str, Any]) -> Any:
        request = task.Request.model_validate(body)
        encodings = task.encode(request)
        batches = [Batch.of([encoding]) for encoding in encodings]
        return task.decode(request, encodings, [batch.split_rows(np.asarray(call(batch)[0]))[0] for batch in batches])

    @app.post(f"/{model.manifest.task}")
    def handle(body: dict[str, Any] = Body()) -> Any:  # noqa: B008  # FastAPI reads the default
        return calls.submit(answer, body).result()
