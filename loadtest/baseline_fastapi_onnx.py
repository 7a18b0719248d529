"""A baseline for comparison: FastAPI, ONNX Runtime with its stock int8, and a thread for each core.

    python -m loadtest.baseline_fastapi_onnx ARTIFACT [ARTIFACT ...]

It prints its URL.
"""

from __future__ import annotations

import sys

from loadtest.baseline_app import create_app
from loadtest.baseline_server import serve
from swiftlet_serve.benchmark.baselines import ENGINES

if __name__ == "__main__":
    serve(lambda: create_app(sys.argv[1:], lambda network: ENGINES["ort_stock"].load(network).call))
