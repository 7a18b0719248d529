"""The program of a worker process, run without the service: start, calls and exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from swiftlet_serve.types import Cost, TimedCall
from swiftlet_serve.workers import messages
from swiftlet_serve.workers.worker_main import ModelReport, WorkerConfig
from tests.support.engines.faulty import Faulty
from tests.support.fakes import PATIENCE_S, encoding, row_of
from tests.support.workers import MODEL


class Worker:
    """A worker process with one connection."""

    def __init__(self, directory: Path, parent_pid: int) -> None:
        (self.control, control), (self.connection, connection) = socket.socketpair(), socket.socketpair()
        self.control.settimeout(PATIENCE_S)
        self.connection.settimeout(PATIENCE_S)
        models = {"0": [str(directory / MODEL)]}
        descriptors = control.fileno(), connection.fileno()
        config = WorkerConfig(control.fileno(), [connection.fileno()], "faulty", 1, models, "info", "text")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.worker_main"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=descriptors,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(json.dumps([parent_pid, asdict(config)]).encode())
        self.process.stdin = None  # `communicate` fails on a closed one
        control.close()
        connection.close()

    def report(self) -> object:
        with self.control.makefile("rb") as reader:
            return json.loads(reader.readline())

    def ask(self, tag: int) -> object:
        self.connection.sendall(messages.pack_call(3, 0, [encoding(tag)]))
        header = self._receive(messages.HEADER_BYTES)
        id_, result = messages.unpack_result(memoryview(self._receive(messages.body_bytes(header))))
        return id_, [row.tolist() for row in result.outcomes]

    def wait(self) -> tuple[int, str]:
        """Returns the exit status and the log."""
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, stderr.decode()

    def _receive(self, size: int) -> bytearray:
        return bytearray(self.connection.recv(size, socket.MSG_WAITALL))


@contextmanager
def worker(directory: Path, parent_pid: int = os.getpid()) -> Iterator[Worker]:
    process = Worker(directory, parent_pid)
    try:
        yield process
    finally:
        process.control.close()
        process.connection.close()
        with suppress(ProcessLookupError):
            process.process.kill()
        process.process.communicate()


def test_report_survives_json():
    cost = Cost(padded=False, call_tokens=1, max_tokens=2, max_rows=3)
    sent = ModelReport(0, "name", cost, [TimedCall(4, 0.5)], [[1], [0], [0]], "native (amx)", 3, [9])

    assert ModelReport.from_json(json.loads(json.dumps(asdict(sent)))) == sent


def test_worker_reports_its_models_and_answers_calls(directory):
    with worker(directory) as process:
        (report,) = process.report()

        assert report["name"] == MODEL
        assert report["cost"] == asdict(Faulty.cost)
        assert process.ask(5) == (3, [row_of(5).tolist()])
        assert process.ask(6) == (3, [row_of(6).tolist()])


def test_worker_reports_an_error_and_exits_if_a_model_cannot_be_loaded(directory):
    (directory / "refuse").touch()
    with worker(directory) as process:
        assert process.report() == {"kind": "ArtifactError", "message": f"{MODEL}: the file `refuse` exists."}
        assert process.wait() == (1, "")


@pytest.mark.parametrize("end", ["control", "connection"])
def test_worker_exits_if_the_parent_closes_a_socket(end, directory):
    with worker(directory) as process:
        process.report()
        process.process.send_signal(signal.SIGTERM)  # ignored
        getattr(process, end).close()

        assert process.wait() == (0, "")


def test_worker_exits_if_its_parent_died_before_it_started(directory):
    with worker(directory, parent_pid=1 << 22) as process:
        assert process.wait() == (1, "")


def test_worker_exits_on_a_malformed_call(directory):
    with worker(directory) as process:
        process.report()
        process.connection.sendall((8).to_bytes(messages.HEADER_BYTES, "little") + bytes(8))
        status, stderr = process.wait()

        assert status == 1
        assert "worker process failed unexpectedly and exits" in stderr
