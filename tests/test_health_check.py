"""The health check of a container follows the settings of its server."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from swiftlet_serve.cli.health_check import address, is_ready
from swiftlet_serve.settings import Settings
from tests.support.certificates import make_certificate
from tests.support.processes import serving

IMAGE = {"SWIFTLET_HOST": "0.0.0.0", "SWIFTLET_PORT": "8000", "SWIFTLET_ADMIN_HOST": "0.0.0.0"}


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, [], ("127.0.0.1", 8000, False)),
        (IMAGE | {"SWIFTLET_ADMIN_PORT": "9000"}, ["swiftlet", "serve"], ("127.0.0.1", 9000, False)),
        (IMAGE | {"SWIFTLET_ADMIN_PORT": "9000"}, ["tini", "--", "swiftlet", "serve", "--admin-port", "7"],
         ("127.0.0.1", 7, False)),
        (IMAGE | {"SWIFTLET_ADMIN_PORT": "9000"}, ["swiftlet", "serve", "--admin-port=7", "--admin-host=::"],
         ("::1", 7, False)),
        (IMAGE, ["swiftlet", "serve", "--port", "81", ""], ("127.0.0.1", 81, False)),
        (IMAGE | {"SWIFTLET_HOST": "10.0.0.7", "SWIFTLET_TLS_CERT": "/tls/cert.pem"}, [], ("10.0.0.7", 8000, True)),
        (IMAGE, ["swiftlet", "serve", "--port"], ("127.0.0.1", 8000, False)),
    ],
)  # fmt: skip
def test_address_is_that_of_the_settings(environment, arguments, expected):
    assert address(environment, arguments) == expected


def test_defaults_are_those_of_the_settings():
    settings = Settings()

    assert address({}, []) == (settings.host, settings.port, settings.tls_cert is not None)
    assert settings.admin_port is None
    assert address({"SWIFTLET_ADMIN_PORT": "1"}, [])[0] == settings.admin_host


def test_server_is_ready_until_it_stops(artifact_dir):
    with serving(artifact_dir, "--admin-port", "0") as server:
        assert is_ready("127.0.0.1", server.port, False)
        assert is_ready("127.0.0.1", server.admin_port, False)
        assert not is_ready("127.0.0.1", server.port, True)
        server.stop()
        server.wait()
        assert not is_ready("127.0.0.1", server.admin_port, False)


def test_server_with_a_certificate_is_ready(artifact_dir, tmp_path):
    made = make_certificate(tmp_path)
    options = ("--tls-cert", str(made / "cert.pem"), "--tls-key", str(made / "key.pem"))
    with serving(artifact_dir, *options) as server:
        assert is_ready("127.0.0.1", server.port, True)
        assert not is_ready("127.0.0.1", server.port, False)


def test_module_imports_only_the_standard_library():
    code = "import sys; before = set(sys.modules); import swiftlet_serve.cli.health_check; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}

    assert not loaded & {"pydantic", "click", "numpy", "fastapi", "starlette"}


def test_server_that_accepts_and_says_nothing_is_not_ready(monkeypatch):
    monkeypatch.setattr("swiftlet_serve.cli.health_check.TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not is_ready("127.0.0.1", silent.getsockname()[1], False)
