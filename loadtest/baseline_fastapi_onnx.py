"""A baseline for comparison: FastAPI, ONNX Runtime with its stock int8, and a call for each core.

    python -m loadtest.baseline_fastapi_onnx [--processes N] [--threads N] ARTIFACT [ARTIFACT ...]

It prints its URL. Several processes divide the cores. With --threads, a call has several, and there are fewer at once.
"""

from __future__ import annotations

import argparse

from loadtest.baseline_answers import ORT_TOKENS, load_ort, prepare
from loadtest.baseline_app import create_app
from loadtest.baseline_server import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("artifacts", nargs="+")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folders = prepare("ort_stock", arguments.artifacts)
    serve(lambda: create_app(folders, load_ort, arguments.threads, ORT_TOKENS), arguments.processes)
