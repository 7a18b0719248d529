"""Bulk scoring that is killed: `swiftlet score` at random moments, alone and beside another worker."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT
from tests.support.scoring import content, texts, write_csv
from tests.torture.outcome import Outcome, scaled

ROWS, SHARD_ROWS = 24_000, 400
PATIENCE_S: Final = 120.0


def killed_jobs(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Kills jobs until they are done, and compares their output with that of one that was not killed."""
    kills, draw = scaled(200, scale, 4), random.Random(19)
    rows = ROWS if scale >= 1 else ROWS // 6
    killed = jobs = different = again = failed = beside = 0
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        source = write_csv(folder / "in.csv", texts(rows))
        model = artifact_dir / "tiny-classify"
        command = [sys.executable, "-m", "swiftlet_serve", "score", str(source), "--model", str(model)]
        command += ["--engine", "echo", "--shard-rows", str(SHARD_ROWS), "--out"]
        started = time.monotonic()
        start_and_wait([*command, str(folder / "whole")])
        whole_s = time.monotonic() - started
        expected = content(folder / "whole")
        while killed < kills or not beside:
            jobs += 1
            out = folder / str(jobs)
            while True:
                finished = _finished(out)
                other = start([*command, str(out)]) if draw.random() < 0.25 else None
                status = start_and_wait([*command, str(out)], draw.uniform(0.1, 1.0) * whole_s)
                if other is not None:  # it takes over the leases of the one that was killed
                    failed += other.wait(PATIENCE_S) != 0
                    beside += status == -signal.SIGKILL
                killed += status == -signal.SIGKILL
                failed += status not in (0, -signal.SIGKILL)
                again += sum(_status(path) != before for path, before in finished.items())
                if status == 0 or other is not None:
                    break
            different += content(out) != expected
    return [
        Outcome("killed scoring: jobs with other bytes", killed, f"{different} of {jobs}", "0", different == 0),
        Outcome("killed scoring: finished shards done again", killed, str(again), "0", again == 0),
        Outcome("killed scoring: restarts that failed", killed, str(failed), "0", failed == 0),
        Outcome("killed scoring: kills beside another worker", killed, str(beside), "> 0", beside > 0),
    ]


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start_and_wait(command: list[str], patience_s: float = PATIENCE_S) -> int:
    """Runs a command and kills it after a time. Returns its status."""
    process = start(command)
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(PATIENCE_S)


def _finished(out: Path) -> dict[Path, tuple[int, int]]:
    """Returns the files of finished shards, each with its inode and the time of its last change."""
    manifest = out / "manifest.jsonl"
    lines = manifest.read_text("utf-8").split("\n")[:-1] if manifest.exists() else []
    paths = [out / line.split('"file": "')[1].partition('"')[0] for line in lines]
    return {path: _status(path) for path in paths}


def _status(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns
