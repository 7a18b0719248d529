"""A server process over a model repository."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from swiftlet_serve.http.gate.api_keys import make_key
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT
from tests.support.processes import ask
from tests.support.repositories import make_version


@pytest.fixture
def root(tmp_path) -> Path:
    path = tmp_path / "repository"
    make_version(path, "flowers", 1)
    return path


@contextmanager
def serving(
    root: Path, *options: str, code: str = "", starts: bool = True
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Starts a server, which runs `code` first. Yields its process and its admin port, which is 0 if it has ended.

    Fails with the server's log if it has ended and should not have.
    """
    program = f"{code}\nfrom swiftlet_serve.cli.main import main\nmain()"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--engine", "echo", "--admin-port", "0"]
    command += ["--spare-engine", "false", "--repository", str(root), "--repository-poll-s", "0.05", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if starts and not line:
                pytest.fail(process.communicate(timeout=PATIENCE_S)[1])
            yield process, int((line or ":0").rpartition(":")[2])
        finally:
            process.terminate()  # it removes its copies
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PATIENCE_S)
            process.kill()


def read_log(process: subprocess.Popen[str], text: str) -> None:
    """Reads a server's log up to a line with a text. Fails with the log if the server ends before."""
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        lines.append(process.stderr.readline())
        if not lines[-1]:
            pytest.fail("".join(lines))


def test_server_that_cannot_start_says_why_in_one_sentence(root):
    (root / "flowers" / "1" / "card.json").write_text("{}")
    with serving(root, starts=False) as (process, _):
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Traceback" not in log
    assert log.splitlines()[-1].startswith("Error: flowers cannot be served: ")


STALLS = """
import sys
from swiftlet_serve.repository.store import DirectoryStore
def desired(store):
    if (pipe := store._root / "pipe").exists():
        print("stalls", file=sys.stderr, flush=True)
        pipe.read_bytes()
DirectoryStore.desired = desired
"""


def test_server_stops_though_its_repository_stalls(root):
    with serving(root, code=STALLS) as (process, _):
        os.mkfifo(root / "pipe")
        read_log(process, "stalls")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in log) == (0, False)


def test_sighup_changes_the_admin_keys(root, tmp_path):
    (old, old_line), (new, new_line) = make_key("old"), make_key("new")
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"{old_line}\n")

    def statuses(port: int) -> list[int]:
        path = "/v2/repository/index"
        return [asyncio.run(ask(port, path, b"", [f"X-API-Key: {key}"])).status for key in (old, new)]

    with serving(root, "--admin-keys-file", str(file)) as (process, port):
        seen = [statuses(port)]
        for content, line in ((new_line, "admin keys were reloaded"), ("", "admin keys stay as they were")):
            file.write_text(content)
            process.send_signal(signal.SIGHUP)
            read_log(process, line)
            seen.append(statuses(port))
    assert seen == [[200, 401], [401, 200], [401, 200]]


def test_server_leaves_no_copies_when_it_stops(root, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with serving(root) as (process, _):
        shutil.rmtree(root / "flowers")  # the copies serve on
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert list((tmp_path / "temporary").iterdir()) == []
