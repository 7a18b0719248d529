"""Runs `wrk`, a closed-loop load generator written in C. It must be installed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).parent / "post.lua"


@dataclass(frozen=True)
class WrkResult:
    rate: float  # requests per second
    p50: float  # milliseconds
    p99: float  # milliseconds
    failed: int


def run(
    url: str, bodies: Path, connections: int, seconds: float, headers: Mapping[str, str] | None = None
) -> WrkResult:
    """Sends the bodies of a file, line by line. A line may begin with a path of its own.

    Raises:
        SystemExit: wrk printed no result.
    """
    command: Sequence[str] = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    header_options = [part for name, value in (headers or {}).items() for part in ("-H", f"{name}: {value}")]
    output = subprocess.run(
        [*command, *header_options, "-s", str(SCRIPT), url],
        env=os.environ | {"BODIES": str(bodies)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    match = re.search(r"RESULT (\d+) (\d+) ([\d.]+) ([\d.]+) (\d+)", output)
    if match is None:
        raise SystemExit(f"wrk printed no result for {url}:\n{output}")
    requests, microseconds, p50, p99, failed = map(float, match.groups())
    return WrkResult(requests / microseconds * 1e6, p50, p99, int(failed))
