"""A run of `wrk`, a closed-loop generator written in C, which must be installed."""

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
class Result:
    """One run."""

    rate: float  # requests a second
    p50: float  # milliseconds
    p99: float  # milliseconds
    failed: int


def run(url: str, bodies: Path, connections: int, seconds: float, headers: Mapping[str, str] | None = None) -> Result:
    """Sends the bodies of a file, line by line, where a line may begin with a path of its own.

    Raises:
        SystemExit: wrk gave no result.
    """
    command: Sequence[str] = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    named = [part for name, value in (headers or {}).items() for part in ("-H", f"{name}: {value}")]
    output = subprocess.run(
        [*command, *named, "-s", str(SCRIPT), url],
        env=os.environ | {"BODIES": str(bodies)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.search(r"RESULT (\d+) (\d+) ([\d.]+) ([\d.]+) (\d+)", output)
    if found is None:
        raise SystemExit(f"wrk said nothing of {url}:\n{output}")
    requests, microseconds, p50, p99, failed = map(float, found.groups())
    return Result(requests / microseconds * 1e6, p50, p99, int(failed))
