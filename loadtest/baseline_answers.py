"""The answers of the baselines that serve artifacts: everything but the engine, HTTP and queueing is Swiftlet's.

    python -m loadtest.baseline_answers ENGINE ARTIFACT...

It makes the files that an engine loads, and prints the folder of each artifact.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models.artifact import Artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve.benchmark.baselines import ENGINES, Call
from swiftlet_serve.benchmark.networks import Network, artifact_network
from swiftlet_serve.benchmark.plan import batches_of_similar_length
from swiftlet_serve.inference.loading import locate, open_model
from swiftlet_serve.types import Batch, Row

RUNS: Final = Path("runs/bench")
ORT_TOKENS: Final = 512  # of a batch with its padding: ONNX Runtime is fastest at it

Load = Callable[[Network, int], Call]
"""Loads a network for calls of this number of threads."""


def load_ort(network: Network, threads: int) -> Call:
    """Loads a network in ONNX Runtime's stock int8."""
    return ENGINES["ort_stock"].load(network, threads).call


def prepare(engine: str, artifacts: Sequence[str]) -> dict[str, Path]:
    """Returns folders with the files that an engine loads, by the artifacts.

    A process of its own makes them: torch, which exports the networks, stays in memory otherwise.
    """
    command = [sys.executable, "-m", "loadtest.baseline_answers", engine, *artifacts]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return dict(zip(artifacts, map(Path, lines), strict=True))


class Answers:
    """The answers of an artifact to bodies of its task."""

    def __init__(self, artifact: str, folder: Path, load: Load, threads: int = 1, batch_tokens: int = 0) -> None:
        """`folder` is that of `prepare`, `threads` are those of a call, and `batch_tokens` those of a batch."""
        (path,) = locate([artifact])
        model = open_model(path, "onnx_cpu")
        self.task, self.route = model.task, f"/{model.manifest.task}"
        self._call = load(Network(Artifact(folder, model.manifest)), threads)
        self._batch_tokens = batch_tokens

    def __call__(self, bodies: Sequence[Any]) -> list[Any]:
        requests = [self.task.Request.model_validate(body) for body in bodies]
        encodings = [self.task.encode(request) for request in requests]
        rows = iter(self._rows([encoding for own in encodings for encoding in own]))
        return [
            self.task.decode(request, own, [next(rows) for _ in own])
            for request, own in zip(requests, encodings, strict=True)
        ]

    def _rows(self, encodings: Sequence[Encoding]) -> list[Row]:
        rows: dict[int, Row] = {}
        for group in batches_of_similar_length(encodings, self._batch_tokens):
            batch = Batch.of(group)
            rows |= zip(map(id, group), batch.split_rows(np.asarray(self._call(batch)[0])), strict=True)
        return [rows[id(encoding)] for encoding in encodings]


def _prepare(engine: str, artifact: str) -> Path:
    (path,) = locate([artifact])
    model = open_model(path, "onnx_cpu")
    network = artifact_network(model.artifact, RUNS, partial(print, file=sys.stderr))
    ENGINES[engine].prepare(network)
    return network.artifact.path


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(_prepare(sys.argv[1], name))
