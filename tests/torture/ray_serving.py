"""Ray Serve under load: killed engines, rolling updates, killed replicas, and a deployment that grows and shrinks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.paths import ROOT
from tests.torture.outcome import Outcome, scaled

PATIENCE_S: Final = 1200.0
CLIENTS: Final = 16  # as in tests.support.ray_serving


def changed_replicas(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Changes the replicas of a deployment under load."""
    rounds = scaled(10, scale, 1)
    found = serve_with_ray(artifact_dir / "tiny-classify", rounds)
    outcomes = []
    for case, title in (
        ("engines", "an engine killed"),
        ("updates", "an update rolled out"),
        ("scaling", "a replica added and removed"),
    ):
        if case not in found:
            continue
        part, lost = found[case], len(found[case]["lost"]) + found[case]["refused"]
        result = f"{lost} of {part['answered'] + lost:,}"
        outcomes.append(Outcome(f"Ray Serve, {title}: lost requests", part["rounds"], result, "0", lost == 0))
    if "replicas" not in found:
        return outcomes
    part, lost = found["replicas"], len(found["replicas"]["lost"])
    goal = CLIENTS * rounds  # the requests that a replica can have in progress
    result = f"{lost} of {part['answered'] + lost:,}"
    title = "Ray Serve, a replica killed: lost requests, all in progress there"
    outcomes.append(Outcome(title, rounds, result, f"≤ {goal}", lost <= goal))
    return outcomes


def serve_with_ray(model: Path, rounds: int) -> dict[str, Any]:
    """Runs the cluster in a process group of its own, because Ray leaves processes behind if it is interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_serving", str(model), str(rounds)],
        cwd=ROOT,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    output, _ = process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise RuntimeError("The cluster could not be measured.")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
