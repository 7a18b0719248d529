"""A Ray cluster of two nodes on this machine, one of which is killed during a job of Ray Data."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT
from tests.support.scoring import done, texts
from tests.torture.outcome import Outcome, scaled

PATIENCE_S: Final = 300.0  # a node and its processes take a minute to start on two busy cores
FILES: Final = 8
OPEN: Final = {"RAY_AUTH_MODE": "disabled"}  # the nodes of a cluster would have to share a token
DOOMED: Final = "SWIFTLET_TEST_DOOMED_NODE"


def killed_node(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Kills a node while its actor has a batch, and compares the rows with those of `swiftlet score`."""
    import pyarrow.parquet as pq

    rows = scaled(40_000, scale, 4000)
    model = {"model": str(artifact_dir / "tiny-classify"), "engine": "echo"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "in", rows)
        done(folder / "in", "--model", model["model"], "--engine", "echo", "--out", folder / "expected")
        fifo = folder / "fifo"
        os.mkfifo(fifo)
        with (
            _node("--head", "--port=0", f"--temp-dir={folder}/ray") as (_, address),
            _node(f"--address={address}", doomed=fifo) as (second, _),
        ):
            config = {"address": address, "source": str(folder / "in"), "out": str(folder / "out")}
            config |= {"checkpoints": str(folder / "checkpoints"), "model": model}
            job = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ray_job", json.dumps(config)],
                cwd=ROOT,
                env=os.environ | OPEN,
            )
            announced = _read(fifo)
            _kill(second)
            status = job.wait(PATIENCE_S)
        expected, found = (
            {
                row["id"]: row
                for path in sorted((folder / one).glob("*.parquet"))
                for row in pq.read_table(path).to_pylist()
            }
            for one in ("expected", "out")
        )
        written = sum(pq.read_metadata(path).num_rows for path in (folder / "out").glob("*.parquet"))
    different = sum(found.get(key) != row for key, row in expected.items())
    return [
        Outcome("Ray Data, node killed: rows lost or other", rows, str(different), "0", different == 0),
        Outcome("Ray Data, node killed: rows twice", rows, str(written - len(found)), "0", written == len(found)),
        Outcome("Ray Data, node killed: rows of its batch", rows, str(announced), "> 0", announced > 0 and status == 0),
    ]


def _write(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    made = texts(rows)
    for number in range(FILES):
        keys, values = zip(*made[number::FILES], strict=True)
        pq.write_table(pa.table({"id": list(keys), "text": list(values)}), folder / f"{number}.parquet")


@contextmanager
def _node(*options: str, doomed: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a node of three CPUs. Yields its process and, of a head node, its address."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=3", *options]
    command += ["--disable-usage-stats", "--object-store-memory=100000000"]
    if "--head" in options:
        command += ["--include-dashboard=false"]
    environment = os.environ | OPEN | ({DOOMED: str(doomed)} if doomed else {})
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process, _wait_for_start(process)
    finally:
        _kill(process)


def _wait_for_start(process: subprocess.Popen[str]) -> str:
    """Returns the address that a node prints when it runs, or nothing if it prints none."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "This command will now block" in line:
            found = re.search(r"--address='([^']+)'", "".join(lines))
            return found[1] if found else ""
    raise RuntimeError("The node has ended before it ran:\n" + "".join(lines))


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a node with all of its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(fifo: Path) -> int:
    """Waits for a doomed actor, and returns the rows of its batch."""
    file = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        ready, _, _ = select.select([file], [], [], PATIENCE_S)
        return int(os.read(file, 100).split()[0]) if ready else 0
    finally:
        os.close(file)
