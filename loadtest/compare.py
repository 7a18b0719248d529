"""Requests a second and latency of `/classify`: Swiftlet and transformers' pipeline, side by side in one run.

    python loadtest/compare.py --checkpoint DIR --artifact DIR [--artifact DIR ...] --bodies FILE

Each server runs by itself, on loopback, with `wrk` (which must be installed) as a closed-loop generator on the same
cores. Every concurrency is measured `--rounds` times in turn with the other servers, and the median round is printed:
machines are shared, so that only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import wrk
from wrk import Result

HERE = Path(__file__).parent
PACKAGES = ("swiftlet", "onnxruntime", "tokenizers", "fastapi", "uvicorn", "torch", "transformers")


class Server:
    """A server process on a port of its own."""

    def __init__(self, name: str, command: list[str], port: int, body: bytes) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}/classify"
        started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not self._answers(body):
            if self.process.poll() is not None:
                raise SystemExit(f"{name} ended with status {self.process.returncode}")
            time.sleep(0.02)
        self.start_seconds = time.monotonic() - started

    def _answers(self, body: bytes) -> bool:
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})  # noqa: S310  # loopback
        try:
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                return bool(response.status == 200)
        except urllib.error.URLError:
            return False

    def load(self, bodies: Path, concurrency: int, seconds: int) -> Result:
        return wrk.run(self.url, bodies, concurrency, seconds)

    @property
    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--artifact", action="append", required=True, help="for Swiftlet: a directory or an embedded model"
    )
    parser.add_argument("--checkpoint", help="for the pipeline: what transformers loads")
    parser.add_argument("--bodies", type=Path, required=True, help="request bodies, one a line")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed")
    body = arguments.bodies.read_bytes().split(b"\n", 1)[0]

    print(f"{_machine()}; {', '.join(_versions())}")
    print(f"{arguments.bodies.name}, median of {arguments.rounds} rounds of {arguments.seconds} s\n")
    print("| server | start | c | requests/s | p50 ms | p99 ms | failed | RSS MiB |\n|---|---|---|---|---|---|---|---|")
    servers = [_swiftlet(artifact) for artifact in arguments.artifact]
    if arguments.checkpoint:
        servers.append(_pipeline(arguments.checkpoint))
    results: dict[tuple[str, int], list[Result]] = {}
    facts: dict[str, tuple[float, float]] = {}
    for _ in range(arguments.rounds):
        for name, command, port in servers:
            server = Server(name, command, port, body)
            try:
                server.load(arguments.bodies, 8, 3)  # warm-up
                for concurrency in arguments.concurrency:
                    results.setdefault((name, concurrency), []).append(
                        server.load(arguments.bodies, concurrency, arguments.seconds)
                    )
                facts[name] = (server.start_seconds, server.resident_mib)
            finally:
                server.stop()
    for (name, concurrency), rounds in results.items():
        middle = sorted(rounds, key=lambda result: result.rate)[len(rounds) // 2]
        start, resident = facts[name]
        failed = sum(result.failed for result in rounds)
        print(
            f"| {name} | {start:.1f} s | {concurrency} | {middle.rate:.1f} | {middle.p50:.1f} | {middle.p99:.1f} "
            f"| {failed} | {resident:.0f} |"
        )


def _swiftlet(artifact: str) -> tuple[str, list[str], int]:
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "service",
        "serve",
        "--models",
        artifact,
        "--port",
        str(port),
        "--log-level",
        "error",
    ]
    return f"swiftlet {Path(artifact).name}", command, port


def _pipeline(checkpoint: str) -> tuple[str, list[str], int]:
    port = _free_port()
    return "transformers pipeline", [sys.executable, str(HERE / "pipeline.py"), checkpoint, str(port)], port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _machine() -> str:
    flags = set(re.findall(r"\b(?:avx2|avx512f|avx512_vnni|amx_int8)\b", Path("/proc/cpuinfo").read_text()))
    return f"{os.cpu_count()} cores, {platform.machine()} {' '.join(sorted(flags))}, Python {platform.python_version()}"


def _versions() -> list[str]:
    return [f"{package} {version(package)}" for package in PACKAGES]


if __name__ == "__main__":
    main()
