"""A baseline for comparison: FastAPI, ONNX Runtime with its stock int8, and a call for each core.

    python -m loadtest.baseline_fastapi_onnx [--threads N] ARTIFACT [ARTIFACT ...]

It prints its URL. With --threads, a call has several, and there are fewer at once.
"""

from __future__ import annotations

import argparse

from loadtest.baseline_app import create_app
from loadtest.baseline_server import serve
from swiftlet_serve.benchmark.baselines import ENGINES, Call
from swiftlet_serve.benchmark.networks import Network


def load(network: Network, threads: int) -> Call:
    return ENGINES["ort_stock"].load(network, threads).call


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("artifacts", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    serve(lambda: create_app(arguments.artifacts, load, arguments.threads))
