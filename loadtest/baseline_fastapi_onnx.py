"""A baseline for comparison: FastAPI, ONNX Runtime with its stock int8, and a thread for each core.

    python -m loadtest.baseline_fastapi_onnx ARTIFACT [ARTIFACT ...]

It prints its URL. It tokenizes and decodes as Swiftlet does, and runs each sequence as a batch of its own. The
differences that remain are HTTP, queueing and batching.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from fastapi import Body, FastAPI

from loadtest.baseline_server import serve
from swiftlet_serve.service.benchmark.baselines import ENGINES
from swiftlet_serve.service.benchmark.networks import artifact_network
from swiftlet_serve.service.loading import locate, open_model
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.types import Batch

RUNS: Final = Path("runs/bench")


def create_app(artifacts: list[str]) -> FastAPI:
    app, threads = FastAPI(), ThreadPoolExecutor(Settings().cores)
    for artifact in artifacts:
        add_route(app, threads, artifact)
    return app


def add_route(app: FastAPI, threads: ThreadPoolExecutor, artifact: str) -> None:
    """Adds the route of an artifact's task."""
    (path,) = locate([artifact])
    model = open_model(path, "onnx_cpu")
    network = artifact_network(model.artifact, RUNS, partial(print, file=sys.stderr))
    call = ENGINES["ort_stock"].load(network).call
    task = model.task

    def answer(body: dict[str, Any]) -> Any:
        request = task.Request.model_validate(body)
        encodings = task.encode(request)
        batches = [Batch.of([encoding]) for encoding in encodings]
        return task.decode(request, encodings, [batch.split_rows(np.asarray(call(batch)[0]))[0] for batch in batches])

    @app.post(f"/{model.manifest.task}")
    def handle(body: dict[str, Any] = Body()) -> Any:  # noqa: B008  # FastAPI reads the default
        return threads.submit(answer, body).result()


if __name__ == "__main__":
    serve(create_app(sys.argv[1:]))
