"""What many people write: FastAPI, ONNX Runtime with stock int8, a thread for each core. For comparison only.

    python loadtest/baseline_fastapi_onnx.py ARTIFACT [ARTIFACT ...]

It prints its address. It reads and writes text as Swiftlet does, and runs each row by itself: what differs is HTTP,
queueing and batching.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import Body, FastAPI

from loadtest import baseline_server
from swiftlet_serve.service.benchmark.baselines import CONTENDERS, opened
from swiftlet_serve.service.loading import locate, open_model
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.types import Batch

RUNS = Path("runs/bench")
note = partial(print, file=sys.stderr)
app = FastAPI()
threads = ThreadPoolExecutor(Settings().cores)


def serve(name: str) -> None:
    """Adds the route of an artifact's task."""
    (path,) = locate([name])
    model = open_model(path, "onnx_cpu")
    call = CONTENDERS["ort_stock"].load(opened(model.artifact, RUNS, note)).call
    task = model.task

    def answer(body: dict[str, Any]) -> Any:
        request = task.Request.model_validate(body)
        encodings = task.encode(request)
        batches = [Batch.of([encoding]) for encoding in encodings]
        return task.decode(request, encodings, [batch.split_rows(np.asarray(call(batch)[0]))[0] for batch in batches])

    @app.post(f"/{model.manifest.task}")
    def ask(body: dict[str, Any] = Body()) -> Any:  # noqa: B008  # FastAPI's way
        return threads.submit(answer, body).result()


for artifact in sys.argv[1:]:
    serve(artifact)
baseline_server.serve(app)
