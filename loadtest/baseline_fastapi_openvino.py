"""A baseline for comparison: FastAPI, OpenVINO, and a call, a stream and an inference request for each core.

    python -m loadtest.baseline_fastapi_openvino [--processes N] [--threads N] ARTIFACT [ARTIFACT ...]

It prints its URL. Several processes divide the cores. With --threads, a call has several, and there are fewer at once.

Of the forms of OpenVINO that were tried with MobileBERT on a CPU with AMX, this one took the least processor time:
bf16, and sequences padded to a multiple of 16 tokens. With int8 of NNCF, a request took 1.04 to 1.19 times as long,
and with int8 weights and dynamic activations 1.0 to 1.5 times. Without padding it took 1.3 to 1.7 times as long in
int8, because OpenVINO prepares itself whenever the shape changes.
"""

from __future__ import annotations

import argparse
import threading
from typing import Any, Final

import numpy as np

from loadtest.baseline_answers import prepare
from loadtest.baseline_app import create_app
from loadtest.baseline_server import serve
from swiftlet_serve.benchmark.baselines import ENGINES, Call
from swiftlet_serve.benchmark.networks import Network
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import Batch, PaddedBatch

MULTIPLE: Final = 16


def padded(batch: Batch, max_tokens: int) -> PaddedBatch:
    """Returns a batch of one sequence, padded to a multiple of some tokens."""
    padded = batch.padded()
    length = padded.input_ids.shape[1]
    more = (0, 0), (0, min(-length % MULTIPLE, max_tokens - length))
    ids, types = (np.pad(array, more) for array in (padded.input_ids, padded.token_type_ids))
    return padded._replace(input_ids=ids, token_type_ids=types)


def load(network: Network, threads: int = 1) -> Call:
    import openvino  # after `swiftlet_serve.engines`, which prevents its telemetry

    cores, own = Settings().cores, threading.local()
    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": cores // threads, "INFERENCE_NUM_THREADS": cores}
    compiled: Any = openvino.compile_model(ENGINES["openvino"].prepare(network), "CPU", hints)

    def call(batch: Batch) -> list[Any]:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        return [own.request.infer(padded(batch, network.artifact.manifest.max_tokens)._asdict())["rows"]]

    return call


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("artifacts", nargs="+")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folders = prepare("openvino", arguments.artifacts)
    serve(lambda: create_app(folders, load, arguments.threads), arguments.processes)
