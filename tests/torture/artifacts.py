"""Hostile artifacts, at length: a sanitized engine refuses them or runs them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.support.artifact_fuzz import MOST_BYTES, RUN_SECONDS, SECONDS, fuzz
from tests.support.native_kernels import sanitized
from tests.torture.outcome import Outcome, scaled

IN_A_PROCESS: Final = 5000
FIRST_SEED: Final = 1_000_000  # other seeds than those of the tests


def hostile_artifacts(artifact_dir: Path, scale: float) -> list[Outcome]:  # the signature of a case
    """Loads artifacts of random faults, and runs those that are not refused."""
    count, failures, slowest, grown = scaled(100_000, scale, 500), 0, 0.0, 0
    shown = "0 failures"
    with tempfile.TemporaryDirectory() as directory:
        library = sanitized(Path(directory))
        for first in range(0, count, IN_A_PROCESS):
            report = fuzz(library, FIRST_SEED + first, min(IN_A_PROCESS, count - first))
            failures += len(report.failures)
            slowest, grown = max(slowest, report.slowest[0]), max(grown, report.grown)
            if report.failures:
                shown = "; ".join(report.failures)
    most = f"<= {MOST_BYTES >> 20} MiB and 4 artifacts"
    limits = f"<= {SECONDS} s to load, {RUN_SECONDS} s to run"
    return [
        Outcome("hostile artifacts", count, shown, "0 reports, crashes and other errors", not failures),
        Outcome("hostile artifacts: slowest, loaded and run", count, f"{slowest:.1f} s", limits, not failures),
        Outcome("hostile artifacts: growth of a process", count, f"{grown >> 20} MiB", most, not failures),
    ]
