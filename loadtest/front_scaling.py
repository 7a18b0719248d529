"""Measures requests per second and CPU time per request with 1, 2 and 4 fronts, in turn: `swiftlet serve --fronts`.

    python -m loadtest.front_scaling [--rounds 5] [--seconds 4] [--fronts 1 2 4]

The engine `echo`, which is the default, does nothing, so that all of the time is the server's own. `wrk` sends short
texts in a closed loop over `--connections` kept connections. The servers run at once, and each round asks all of them.
On a machine with few cores, requests per second say little, since wrk, fronts, coordinator and engine share them: the
CPU time per request tells what each process takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from loadtest import wrk
from loadtest.server_process import cpu_s, roles, serving
from swiftlet_serve.service.offline.environment import current_environment
from swiftlet_serve.service.percentile import percentile

TEXT: Final = "A warm, funny and clever film."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--engine", default="echo")
    parser.add_argument("--model", default="mobilebert-sst2", help="Name of a bundled model, or an artifact directory.")
    parser.add_argument("--fronts", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    rates: dict[int, list[wrk.WrkResult]] = {fronts: [] for fronts in arguments.fronts}
    costs: dict[int, dict[str, list[float]]] = {fronts: {} for fronts in arguments.fronts}
    with ExitStack() as stack:
        bodies = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bodies"
        bodies.write_text(json.dumps({"inputs": TEXT}) + "\n")
        servers = {
            fronts: stack.enter_context(
                serving([arguments.model], arguments.engine, "--fronts", str(fronts), "--cores", "1")
            )
            for fronts in arguments.fronts
        }
        for server in servers.values():
            wrk.run(f"{server.url}/classify", bodies, arguments.connections, 1)
        for _ in range(arguments.rounds):
            for fronts, server in servers.items():
                pids = roles(server)
                before = {role: cpu_s(ids) for role, ids in pids.items()}
                result = wrk.run(f"{server.url}/classify", bodies, arguments.connections, arguments.seconds)
                rates[fronts].append(result)
                answered = result.rate * arguments.seconds
                for role, ids in pids.items():
                    costs[fronts].setdefault(role, []).append(1e6 * (cpu_s(ids) - before[role]) / answered)
    print(f"{current_environment().description()}, {arguments.connections} connections\n")
    print("| fronts | requests/s (quartiles) | p50 / p99 | server process | fronts | engine | failed |")
    print("|---|---|---|---|---|---|---|")
    for fronts, results in rates.items():
        low, middle, high = (percentile([one.rate for one in results], share) for share in (0.25, 0.5, 0.75))
        p50, p99 = (percentile(sorted(getattr(one, name) for one in results), 0.5) for name in ("p50", "p99"))
        shown = [f"{percentile(costs[fronts][role], 0.5):.0f} us" for role in ("server", "fronts", "engine")]
        failed = sum(one.failed for one in results)
        print(f"| {fronts} | {middle:.0f} ({low:.0f} to {high:.0f}) | {p50:.1f} / {p99:.1f} ms ", end="")
        print("| " + " | ".join(shown) + f" | {failed} |")


if __name__ == "__main__":
    main()
