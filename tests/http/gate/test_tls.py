"""TLS of the public port."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftlet_serve.cli.main import main
from tests.support.certificates import make_certificate
from tests.support.processes import ask, request, serving


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


async def test_public_port_with_a_certificate_requires_tls(artifact_dir, certificate):
    trusting = ssl.create_default_context(cafile=certificate / "cert.pem")

    files = ("--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem"))
    with serving(artifact_dir, *files, "--admin-port", "0") as server:
        silent = await asyncio.open_connection("127.0.0.1", server.port)
        plain, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request())
        refused = await plain.read()
        response = await ask(server.port, tls=trusting)
        silent[1].close()
        live = await ask(server.admin_port, "/health/live", None)
        server.stop()
        refused, response, live, status = refused, response, live, await asyncio.to_thread(server.wait)

    assert server.url.startswith("https://")
    assert b"HTTP" not in refused
    assert (response.status, live.status, status) == (200, 200, 0)
    assert server.warnings == ""


@pytest.mark.parametrize(
    ("cert", "key", "wait_for_output"),
    [
        ("cert.pem", "nowhere.pem", "No such file or directory"),
        ("nowhere.pem", "key.pem", "No such file or directory"),
        ("key.pem", "cert.pem", "do not hold a certificate and its private key"),
        ("cert.pem", "locked.pem", "do not hold a certificate and its private key"),
        ("cert.pem", None, "do not hold a certificate and its private key"),
        (None, "key.pem", "tls_key is set, but tls_cert is not"),
    ],
)
def test_serve_reports_invalid_tls_files(cert, key, wait_for_output, certificate):
    options = [f"--{name}={certificate / file}" for name, file in (("tls-cert", cert), ("tls-key", key)) if file]
    result = CliRunner().invoke(main, ["serve", *options, "--models", "nowhere"])

    assert result.exit_code == 1
    assert wait_for_output in result.output
    assert "Traceback" not in result.output
