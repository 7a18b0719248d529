"""A job that ends at any moment goes on with the same bytes, and does no finished shard twice."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftlet_serve.bulk.leases import Leases
from swiftlet_serve.bulk.plan import Shard
from swiftlet_serve.bulk.records import Chunk
from swiftlet_serve.bulk.worker import Part, Worker
from tests.support.paths import ROOT
from tests.support.scoring import content, done, refusal, score, texts, write_csv

ROWS, SHARD_ROWS = 50, 10
PATIENCE_S = 60.0
CALLS = ("fsync", "rename")


class Waiting(Exception):
    """Ends a worker that waits for another."""


class Killed(BaseException):
    """Ends a job as a signal does, but in this process."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("input") / "in.csv", texts(ROWS))


@pytest.fixture
def options(source, models, tmp_path) -> tuple[object, ...]:
    model = models / "tiny-classify"
    return (source, "--model", model, "--engine", "echo", "--shard-rows", SHARD_ROWS, "--out", tmp_path / "out")


@pytest.fixture(scope="module")
def expected(source, models, tmp_path_factory) -> dict[str, bytes]:
    """The output without an interruption."""
    out = tmp_path_factory.mktemp("expected") / "out"
    done(source, "--model", models / "tiny-classify", "--engine", "echo", "--shard-rows", SHARD_ROWS, "--out", out)
    return content(out)


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int, *, before: bool) -> None:
    """Ends the job at the `number`-th call that makes something durable, before or after the call."""
    seen = 0

    def counted(call: Callable[..., None]) -> Callable[..., None]:
        def wrapper(*args: object) -> None:
            nonlocal seen
            seen += 1
            if seen == number and before:
                raise Killed
            call(*args)
            if seen == number:
                raise Killed

        return wrapper

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


def durable_calls(options, monkeypatch) -> int:
    """Returns the number of these calls in a whole job."""
    seen: list[str] = []
    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, _noted(getattr(os, name), seen))
        done(*options)
    return len(seen)


def _noted(call: Callable[..., None], seen: list[str]) -> Callable[..., None]:
    def wrapper(*args: object) -> None:
        seen.append(call.__name__)
        call(*args)

    return wrapper


@pytest.mark.parametrize("before", [True, False])
def test_job_goes_on_after_each_durable_call(options, expected, monkeypatch, tmp_path, before):
    calls = durable_calls((*options[:-1], tmp_path / "whole"), monkeypatch)
    assert calls > 4 * ROWS // SHARD_ROWS

    for number in range(1, calls + 1):
        out = tmp_path / str(number)
        with monkeypatch.context() as patch:
            kill_at(patch, number, before=before)
            with pytest.raises(Killed):
                score(*options[:-1], out)
        finished = {name: status(out / name) for name in _finished(out)}
        done(*options[:-1], out)

        assert content(out) == expected
        assert {name: status(out / name) for name in finished} == finished


def status(path: Path) -> tuple[int, int]:
    """Identifies a file that is not written again: its inode and the time of its last change."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _finished(out: Path) -> list[str]:
    manifest = out / "manifest.jsonl"
    lines = manifest.read_bytes().split(b"\n")[:-1] if manifest.exists() else []
    return [f"part-{number:05}.csv" for number in range(len(lines))]


def test_finished_shards_are_not_scored_again(options, expected, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        kill_at(patch, 3 + 4 * 2 + 2, before=False)  # three calls for the plan, four for a shard and one more at first
        with pytest.raises(Killed):
            score(*options)
    left = len(_finished(tmp_path / "out"))
    written: list[str] = []
    with monkeypatch.context() as patch:
        call = Worker._write
        patch.setattr(
            Worker, "_write", lambda self, shard, parts: (written.append(shard.index), call(self, shard, parts))
        )
        result = done(*options)

    assert 0 < left < ROWS // SHARD_ROWS
    assert written == list(range(left, ROWS // SHARD_ROWS))
    assert f"{ROWS} rows in 5 shards, {left * SHARD_ROWS} of them finished" in result.stderr
    assert content(tmp_path / "out") == expected


def test_finished_job_does_nothing(options, expected, monkeypatch, tmp_path):
    done(*options)
    monkeypatch.setattr(Worker, "run", None)

    assert "50 rows; 0 bad" in done(*options).stdout
    assert content(tmp_path / "out") == expected


def test_file_is_durable_before_its_line(options, monkeypatch, tmp_path):
    """The order of the calls is what a crash of the machine depends on."""
    order: list[str] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(file: int) -> None:
        order.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        fsync(file)

    def traced_rename(old: Path, new: Path) -> None:
        order.append(f"rename {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced_rename)
    done(*options, "--shard-rows", ROWS)

    assert order == [
        *("fsync plan.json.tmp", "rename plan.json", "fsync out"),
        *("fsync part-00000.csv.tmp", "rename part-00000.csv", "fsync out", "fsync manifest.jsonl", "fsync out"),
    ]


@pytest.mark.parametrize("number", [2, 7, 13, 22])
def test_killed_process_is_followed_by_another(options, expected, number, tmp_path):
    code = (
        "import os, signal\n"
        "from swiftlet_serve.cli import main as cli\n"
        "seen = 0\n"
        "def counted(call):\n"
        "    def wrapper(*args):\n"
        "        global seen\n"
        "        seen += 1\n"
        "        call(*args)\n"
        f"        if seen == {number}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return wrapper\n"
        "os.fsync, os.rename = counted(os.fsync), counted(os.rename)\n"
        "cli.main()\n"
    )
    process = subprocess.run([sys.executable, "-c", code, "score", *map(str, options)], cwd=ROOT, timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL

    done(*options)

    assert content(tmp_path / "out") == expected


def test_half_a_line_of_the_manifest_is_no_line(options, expected, monkeypatch, tmp_path):
    done(*options)
    manifest = tmp_path / "out" / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:2]) + lines[2][:40])

    done(*options)

    assert content(tmp_path / "out") == expected


def test_full_disk_keeps_finished_shards(options, expected, monkeypatch, tmp_path):
    written = 0
    fsync = os.fsync

    def full(file: int) -> None:
        nonlocal written
        written += 1
        if written > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        sentence = refusal(*options)

    assert "cannot be written: No space left on device. The finished shards are kept" in sentence
    assert not list((tmp_path / "out").glob("*.tmp"))
    done(*options)
    assert content(tmp_path / "out") == expected


def test_full_disk_at_the_plan_is_said(options, monkeypatch, tmp_path):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        sentence = refusal(*options)

    assert "The plan cannot be written" in sentence
    assert "No space left on device" in sentence
    done(*options)


def test_clock_that_jumps_changes_nothing(options, expected, monkeypatch, tmp_path):
    for name in ("time", "monotonic", "time_ns", "monotonic_ns"):
        calls = iter(range(10**9, 0, -1000))
        monkeypatch.setattr(f"time.{name}", lambda calls=calls: next(calls))

    score(*options)

    assert content(tmp_path / "out") == expected


def test_two_workers_share_the_shards(options, expected, tmp_path, monkeypatch):
    """The second worker runs when the first one begins its third shard, until it has to wait."""
    read, write = Worker._read, Worker._write
    written: dict[str, list[int]] = {"first": [], "second": []}
    worker = "first"

    def interrupted(self: Worker, shard: Shard) -> Iterator[Chunk]:
        nonlocal worker
        if shard.index == 2 and worker == "first" and not written["second"]:
            worker = "second"
            assert isinstance(score(*options).exception, Waiting)
            worker = "first"
        yield from read(self, shard)

    def noted(self: Worker, shard: Shard, parts: Iterator[Part]) -> None:
        written[worker].append(shard.index)
        write(self, shard, parts)

    def wait(self: Leases, shard: int) -> None:
        raise Waiting

    with monkeypatch.context() as patch:
        patch.setattr(Leases, "wait", wait)
        patch.setattr(Worker, "_read", interrupted)
        patch.setattr(Worker, "_write", noted)
        done(*options)

    assert sorted(written["first"][-3:]) == [0, 1, 2]
    assert written["second"] == [3, 4]
    assert content(tmp_path / "out") == expected


def test_worker_waits_for_the_lease_of_another(options, expected, tmp_path):
    """A process holds the lease of a shard, and is killed."""
    done(*options)
    _forget(tmp_path / "out", 1)
    holder = _holder(tmp_path / "out", 1)
    try:
        command = [sys.executable, "-m", "swiftlet_serve", "score", *map(str, options)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        while "of them finished" not in process.stderr.readline():
            pass
        holder.kill()
        assert process.wait(PATIENCE_S) == 0
    finally:
        holder.kill()
        holder.wait()

    assert content(tmp_path / "out") == expected


def _forget(out: Path, shard: int) -> None:
    """Removes a shard from a finished job."""
    manifest = out / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(line for number, line in enumerate(lines) if number != shard))
    (out / f"part-{shard:05}.csv").unlink()


def _holder(out: Path, shard: int) -> subprocess.Popen[str]:
    """Starts a process that holds a lease until it is killed."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom swiftlet_serve.bulk.leases import Leases\n"
        f"leases = Leases(Path({str(out)!r}))\nprint(leases.take({shard}), flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_lease_is_held_once_and_ends_with_its_process(tmp_path):
    holder = _holder(tmp_path, 3)
    with Leases(tmp_path) as leases:
        assert not leases.take(3)
        assert leases.take(4)
        holder.kill()
        holder.wait()
        assert leases.take(3)


def test_two_processes_write_the_output(options, expected, tmp_path):
    result = done(*options, "--workers", 2)

    assert "50 rows, 50 of them now" in result.stdout
    assert content(tmp_path / "out") == expected
