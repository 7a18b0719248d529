"""What a server writes from its start to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from swiftlet_serve import build_info
from swiftlet_serve.settings import Settings
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT
from tests.support.processes import ask, serving

MODEL = "model tiny-classify 1 (classify) runs on echo"


def messages(stderr: str) -> list[str]:
    return [line.partition(": ")[2] for line in stderr.splitlines()]


async def test_log_tells_start_ready_stop_and_counts(artifact_dir):
    with serving(artifact_dir, "--timeout-ms", "5000", "--grpc-port", "0") as server:
        assert [(await ask(server.port, *request)).status for request in (("/classify",), ("/classify", b"{"))] == [
            200,
            400,
        ]
        server.stop()
        server.wait()
    starting, model, ready, stopping, stopped = messages(server.stderr)

    assert starting.startswith(f"starting Swiftlet {build_info.version()} ({build_info.revision()[:12]}), Python 3.")
    assert "timeout_ms=5000" in starting
    assert "drain_s" not in starting
    assert model == MODEL
    assert ready.startswith("ready after ")
    assert ready.endswith(f" s: {server.url}, {server.grpc_address}")
    assert stopping == "stopping: 0 requests are in progress, new ones for 0 s"
    assert stopped.endswith(" s: 1 answered, 0 failed, 0 cancelled, 1 refused")


def test_log_does_not_tell_the_address_of_traces(artifact_dir):
    with serving(artifact_dir, "--traces-endpoint", "http://user:secret@127.0.0.1:9/v1/traces") as server:
        server.stop()
        server.wait()

    assert "traces_endpoint" in server.stderr
    assert "secret" not in server.stderr


def test_every_line_is_json_if_the_log_is(artifact_dir):
    with serving(artifact_dir, "--log-format", "json", "--host", "0.0.0.0") as server:
        server.stop()
        out, err = server.process.communicate(timeout=PATIENCE_S)

    lines = [json.loads(line) for line in (out + err).splitlines()]
    assert len(lines) == 6  # five of the life cycle, and a warning
    assert {line["level"] for line in lines} == {"info", "warning"}


@pytest.mark.parametrize("kind", ["text", "json"])
def test_closed_output_does_not_end_the_server(kind, artifact_dir):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "swiftlet_serve", "serve", "--port", "0", "--engine", "echo"]
    command += ["--models", str(artifact_dir / "tiny-classify"), "--log-format", kind]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writer)
        assert process.stderr is not None
        assert any("ready after" in line for line in iter(process.stderr.readline, ""))
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_defaults_are_not_repeated_in_the_log():
    from swiftlet_serve.server import _changes

    assert _changes(Settings(cores=3)) == "3 cores, settings: the defaults"
