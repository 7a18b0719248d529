"""Measures requests per second and CPU time per request with 1, 2 and 4 fronts, in turn: `swiftlet serve --fronts`.

    python -m loadtest.front_scaling [--rounds 5] [--seconds 4] [--fronts 1 2 4] [--peers 1 4]

The engine `echo`, which is the default, does nothing, so that all of the time is the server's own. `wrk` sends short
texts in a closed loop over `--connections` kept connections. The servers run at once, and each round asks all of them.
`--peers` adds FastAPI with OpenVINO in so many processes, which divide the cores. On a machine with few cores, requests
per second say little, since wrk, fronts, coordinator and engine share them: the CPU time per request tells what each
process takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtest import wrk
from loadtest.server_process import cpu_by_role, module_server, serving, wait_until_idle
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.telemetry.percentile import percentile

ROLE_TITLES: Final = ("server process", "fronts", "engine")
TEXT: Final = "A warm, funny and clever film."
PEER: Final = "loadtest.baseline_fastapi_openvino"
WARM_UP_S: Final = 1
HEAD: Final = ("connections", "server", "requests/s (quartiles)", "p50 / p99", *ROLE_TITLES, "failed")


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    pid: int
    rounds: dict[int, list[wrk.WrkResult]] = field(default_factory=dict)  # by connections
    cost_us: dict[int, dict[str, list[float]]] = field(default_factory=dict)  # CPU time of a request, by role

    def measure(self, bodies: Path, connections: int, seconds: float) -> None:
        """Runs a round."""
        before = cpu_by_role(self.pid)
        result = wrk.run(f"{self.url}/classify", bodies, connections, seconds)
        self.rounds.setdefault(connections, []).append(result)
        answered, costs = max(1.0, result.rate * seconds), self.cost_us.setdefault(connections, {})
        for role, cpu in cpu_by_role(self.pid).items():
            costs.setdefault(role, []).append(1e6 * (cpu - before[role]) / answered)
        wait_until_idle(self.pid)


def row(server: Server, connections: int) -> str:
    """Returns the row of a server with so many connections."""
    results, costs = server.rounds[connections], server.cost_us[connections]
    low, middle, high = (percentile([run.rate for run in results], share) for share in (0.25, 0.5, 0.75))
    p50, p99 = (percentile(sorted(getattr(run, name) for run in results), 0.5) for name in ("p50", "p99"))
    shown = [f"{percentile(costs[role], 0.5):.0f} us" for role in ("server", "fronts", "engine")]
    rate = f"{middle:.0f} ({low:.0f} to {high:.0f})"
    cells = [str(connections), server.name, rate, f"{p50:.1f} / {p99:.1f} ms", *shown]
    return f"| {' | '.join([*cells, str(sum(run.failed for run in results))])} |"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=4)
    add("--connections", type=int, nargs="+", default=[64])
    add("--engine", default="echo")
    add("--model", default="mobilebert-sst2", help="Name of a bundled model, or an artifact directory.")
    add("--fronts", type=int, nargs="+", default=[1, 2, 4])
    add("--cores", type=int, default=1, help="Concurrent engine calls. Default: 1.")
    add("--peers", type=int, nargs="*", default=[], help="Processes of FastAPI with OpenVINO.")
    return parser.parse_args()


def main() -> None:
    arguments = _parse()
    with ExitStack() as stack:
        bodies = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bodies"
        bodies.write_text(json.dumps({"inputs": TEXT}) + "\n")
        servers = []
        for fronts in arguments.fronts:
            options = ("--fronts", str(fronts), "--cores", str(arguments.cores), "--timeout-ms", "60000")
            process = stack.enter_context(serving([arguments.model], arguments.engine, *options))
            servers.append(Server(f"fronts: {fronts}", process.url, process.pid))
        for processes in arguments.peers:
            peer = module_server(PEER, "--processes", str(processes), arguments.model)
            servers.append(Server(f"FastAPI and OpenVINO, processes: {processes}", *stack.enter_context(peer)))
        print(f"{current_environment().description()} {arguments.engine}, {Path(arguments.model).name}\n")
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        for server in servers:
            wrk.run(f"{server.url}/classify", bodies, 64, WARM_UP_S)
            wait_until_idle(server.pid)
        for connections in arguments.connections:
            for _ in range(arguments.rounds):
                for server in servers:
                    server.measure(bodies, connections, arguments.seconds)
            for server in servers:
                print(row(server, connections), flush=True)


if __name__ == "__main__":
    main()
