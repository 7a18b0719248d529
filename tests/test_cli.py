"""The command line: help, errors, checks, and a server that starts, answers and stops."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner

from swiftlet_models.artifact import ONNX
from swiftlet_serve import engines, plugins
from swiftlet_serve.cli.main import main
from swiftlet_serve.settings import Settings
from tests.support.artifacts import make_artifact
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT

JSON = {"Content-Type": "application/json"}


def run(*arguments: str):
    return CliRunner().invoke(main, arguments)


def test_help_lists_commands_and_settings():
    commands = {"bench", "cache", "calibrate", "certify", "check", "evaluate", "import", "key", "plot", "push", "score"}
    commands |= {"replay", "serve", "shadow", "shadow-report", "study", "train"}
    assert set(re.findall(r"^  ([a-z][\w-]*)  ", run("--help").output, re.MULTILINE)) == commands
    options = run("serve", "--help").output
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in options
        assert field.description.split()[0] in options


def test_engine_setting_lists_engines():
    description = Settings.model_fields["engine"].description

    assert all(name in description for name in plugins.names(engines))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--port", "x"], "--port or SWIFTLET_PORT"),
        (["serve", "--log-level", "loud"], "--log-level or SWIFTLET_LOG_LEVEL"),
        (["serve", "--port", "0", "--models", "nowhere"], "There is no model 'nowhere'"),
        (["serve", "--nonsense"], "--nonsense"),
    ],
)
def test_command_reports_mistakes_without_traceback(arguments, message):
    result = run(*arguments)

    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_check_describes_artifacts(artifact_dir):
    result = run("check", str(artifact_dir / "tiny-classify"), str(artifact_dir / "tiny-qa"))

    assert result.exit_code == 0
    assert "tiny-classify 1" in result.output
    assert "classify: bad, good, neither" in result.output
    assert "largest deviation 0" in result.output
    assert result.output.count("loaded in") == 2


def test_check_fails_if_one_artifact_is_invalid(artifact_dir, tmp_path):
    broken = make_artifact(tmp_path, "qa", name="broken")
    broken.file(ONNX).write_bytes(b"")
    result = run("check", str(broken.path), str(artifact_dir / "tiny-qa"))

    assert result.exit_code == 1
    assert "broken: model.onnx has 0 bytes" in result.output
    assert "tiny-qa 1" in result.output


@pytest.mark.parametrize("engine", ["onnx_cpu", "echo"])
def test_serve_answers_printed_examples_and_stops_on_sigterm(artifact_dir, engine):
    models = ",".join(str(artifact_dir / f"tiny-{task}") for task in ("classify", "qa", "fill-mask"))
    command = [
        sys.executable,
        "-m",
        "swiftlet_serve",
        "serve",
        "--port",
        "0",
        "--engine",
        engine,
        "--models",
        models,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            url = re.search(r"http://\S+", server.stdout.readline()).group()
            assert server.stdout.readline() == "\n"
            for _ in range(3):
                _, address, _, header, _, body = shlex.split(server.stdout.readline())
                request = urllib.request.Request(address, body.encode(), dict([header.split(": ")]))
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                    assert response.status == 200
                    assert "server" not in response.headers
                    assert json.load(response)
            with urllib.request.urlopen(f"{url}/health/ready", timeout=PATIENCE_S) as response:
                assert json.load(response) == {"ready": True}
            server.send_signal(signal.SIGTERM)
            _, stderr = server.communicate(timeout=PATIENCE_S)
        finally:
            server.kill()

    assert len(re.findall(rf" INFO \S+: model tiny-\S+ 1 \(\S+\) runs on {engine}", stderr)) == 3
    assert server.returncode == 0


SERVE_FAULTY = """
from functools import partial
from swiftlet_serve.inference import local_runtime
from swiftlet_serve.cli.main import main
local_runtime.ProcessExecutor = partial(local_runtime.ProcessExecutor, worker_module="tests.support.worker_main")
main()
"""


def test_serve_times_out_and_stops_while_engine_hangs(tmp_path):
    model = make_artifact(tmp_path, "qa").path
    (tmp_path / "stuck").touch()
    command = [sys.executable, "-c", SERVE_FAULTY, "serve", "--port", "0", "--engine", "faulty", "--models", str(model)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    body = b'{"inputs": {"question": "a", "context": "b"}}'
    with subprocess.Popen(
        [*command, "--timeout-ms", "100", "--shutdown-timeout-s", "1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            url = re.search(r"http://\S+", server.stdout.readline()).group()
            with pytest.raises(urllib.error.HTTPError) as failure:
                urllib.request.urlopen(urllib.request.Request(f"{url}/qa", body, JSON))
            assert failure.value.code == 504
            server.send_signal(signal.SIGTERM)
            _, stderr = server.communicate(timeout=PATIENCE_S)
        finally:
            server.kill()

    assert "Traceback" not in stderr
    assert server.returncode == 0
