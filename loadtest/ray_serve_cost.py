"""Measures the way through Ray Serve's proxy: a server and a replica of Ray Serve, in turn.

    python -m loadtest.ray_serve_cost [--rounds 5] [--seconds 4]

The engine `echo` does nothing, so all of the time is the servers'. `wrk` sends short texts over kept
connections, one and 32 at a time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import ray
from ray import serve

from loadtest import wrk
from loadtest.server_process import serving
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.ray_serve import application
from swiftlet_serve.telemetry.percentile import percentile

TEXT: Final = "A warm, funny and clever film."
CONNECTIONS: Final = (1, 32)
LOGGING: Final[Any] = {"enable_access_log": False, "log_level": "ERROR"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--port", type=int, default=8123, help="port of Ray's proxy")
    arguments = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    results_of: dict[tuple[str, int], list[wrk.WrkResult]] = {}
    with ExitStack() as stack:
        bodies = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bodies"
        bodies.write_text(json.dumps({"inputs": TEXT}) + "\n")
        server = stack.enter_context(serving([], "echo", "--cores", "1"))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        stack.callback(ray.shutdown)
        serve.start(http_options={"port": arguments.port}, logging_config=LOGGING)
        stack.callback(serve.shutdown)
        serve.run(application({"engine": "echo"}), name="swiftlet", route_prefix="/", logging_config=LOGGING)
        urls = {"swiftlet serve": server.url, "Ray Serve": f"http://127.0.0.1:{arguments.port}"}
        for url in urls.values():
            wrk.run(f"{url}/classify", bodies, max(CONNECTIONS), 1)
        for _ in range(arguments.rounds):
            for connections in CONNECTIONS:
                for name, url in urls.items():
                    result = wrk.run(f"{url}/classify", bodies, connections, arguments.seconds)
                    results_of.setdefault((name, connections), []).append(result)
    print(f"{current_environment('ray').description()}\n")
    print("| server | connections | requests/s (quartiles) | p50 / p99 | failed |")
    print("|---|---|---|---|---|")
    for (name, connections), results in results_of.items():
        low, middle, high = (percentile(sorted(run.rate for run in results), share) for share in (0.25, 0.5, 0.75))
        p50, p99 = (percentile(sorted(getattr(run, part) for run in results), 0.5) for part in ("p50", "p99"))
        failed = sum(run.failed for run in results)
        print(
            f"| {name} | {connections} | {middle:.0f} ({low:.0f} to {high:.0f}) | {p50:.1f} / {p99:.1f} ms | {failed} |"
        )


if __name__ == "__main__":
    main()
