# /// script
# requires-python = ">=3.11"
# dependencies = ["tritonclient[http,grpc]==2.73.0", "numpy==2.4.6"]
# ///
"""Measures one short request with Triton's clients over HTTP and gRPC, in turn, to a server with both ports.

uv run --no-project loadtest/triton_latency.py 127.0.0.1:8000 127.0.0.1:8001 [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

TEXT = "A warm, funny and clever film."
WARM_UP_ROUNDS = 200


def main() -> None:
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3000
    took: dict[str, list[float]] = {"HTTP": [], "gRPC": []}
    clients: dict[str, tuple[Any, Any]] = {}
    for name, module, address in zip(took, (tritonclient.http, tritonclient.grpc), sys.argv[1:3], strict=True):
        text = module.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([TEXT], dtype=object))
        clients[name] = module.InferenceServerClient(address), [text]
    for round_number in range(WARM_UP_ROUNDS + rounds):
        for name, (client, inputs) in clients.items():
            started = time.perf_counter()
            client.infer("classify", inputs)
            if round_number >= WARM_UP_ROUNDS:
                took[name].append(1e6 * (time.perf_counter() - started))
    more = statistics.median(b - a for a, b in zip(*took.values(), strict=True))
    print("| Triton's clients, one text | p50, µs | p99, µs |")
    print("|---|---|---|")
    for name, own in took.items():
        print(f"| {name} | {statistics.median(own):.0f} | {np.percentile(own, 99):.0f} |")
    print(f"\nOver gRPC a request takes {more:.0f} µs more (median of the differences).")


if __name__ == "__main__":
    main()
