"""SIGHUP: a running server reloads its API keys and its certificate."""

from __future__ import annotations

import asyncio
import shutil
import signal
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftlet_serve.cli.main import main
from swiftlet_serve.http.gate.api_keys import make_key
from tests.support.fakes import PATIENCE_S
from tests.support.grpc_server import Client, request
from tests.support.processes import Process, ask, serving

FINE = request("classify", {"text": ["fine"]})


async def reload(server: Process, line: str) -> None:
    """Sends SIGHUP, and waits until the server has logged a line with this text."""
    server.stop(signal.SIGHUP)
    killer = threading.Timer(PATIENCE_S, server.process.kill)  # which ends its log
    killer.start()
    stderr = server.process.stderr
    assert stderr is not None
    assert await asyncio.to_thread(lambda: any(line in each for each in iter(stderr.readline, "")))
    killer.cancel()


async def status(server: Process, key: str) -> int:
    return (await ask(server.port, "/models", None, [f"X-API-Key: {key}"])).status


async def test_keys_are_reloaded_and_a_bad_file_changes_nothing(artifact_dir, tmp_path):
    (old, old_line), (new, new_line) = make_key("old"), make_key("new")
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"{old_line}\n")

    with serving(artifact_dir, "--api-keys-file", str(file), "--grpc-port", "0") as server:
        call = Client(str(server.grpc_address))
        seen = [(await status(server, old), await status(server, new))]
        file.write_text(f"{new_line}\n")
        await reload(server, "The API keys were reloaded")
        seen.append((await status(server, old), await status(server, new)))
        await call.call("ModelInfer", FINE, x_api_key=new)
        for bad in ("", "no hash"):
            file.write_text(bad)
            await reload(server, "The API keys stay as they were")
            seen.append((await status(server, old), await status(server, new)))
        await call.channel.close()
        assert seen == [(200, 401), (401, 200), (401, 200), (401, 200)]


def make_certificate(directory: Path) -> None:
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl to make a certificate with")
    new = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    new += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(new.split(), cwd=directory, check=True, capture_output=True)


async def test_new_connections_use_the_new_certificate(artifact_dir, tmp_path):
    make_certificate(tmp_path)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def served(address: str) -> str:
        host, _, port = address.rpartition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=PATIENCE_S).strip()

    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--grpc-port", "0")
    with serving(artifact_dir, *options) as server:
        addresses = [f"127.0.0.1:{server.port}", str(server.grpc_address)]
        seen = [{await asyncio.to_thread(served, one) for one in addresses}]
        first = cert.read_text().strip()
        make_certificate(tmp_path)
        second = cert.read_text().strip()
        await reload(server, "The certificate was reloaded")
        seen.append({await asyncio.to_thread(served, one) for one in addresses})
        key.write_text("no key")
        await reload(server, "The certificate stays as it was")
        seen.append({await asyncio.to_thread(served, one) for one in addresses})
        expected = [{first}, {second}, {second}]

    assert seen == expected
    assert expected[0] != expected[1]


async def test_sighup_without_files_changes_nothing(artifact_dir):
    with serving(artifact_dir) as server:
        server.stop(signal.SIGHUP)
        assert (await ask(server.port)).status == 200


@pytest.mark.parametrize("before", [None, "", "# ours", "# ours\n"])
def test_command_adds_a_key_to_a_file_of_its_owner(before, tmp_path):
    file = tmp_path / "keys"
    if before is not None:
        file.touch(0o640)
        file.write_text(before)
    for name in ("one", "two"):
        assert CliRunner().invoke(main, ["key", name, "--file", str(file)]).exit_code == 0

    assert file.stat().st_mode & 0o777 == (0o600 if before is None else 0o640)
    lines = file.read_text().splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["one", "two"]
    assert len(lines) == 2 + bool(before)


def test_command_does_not_lose_a_key_that_it_cannot_write(tmp_path):
    result = CliRunner().invoke(main, ["key", "one", "--file", str(tmp_path / "nowhere/keys")])

    assert result.exit_code == 1
    assert "Cannot write the API key file" in result.output
    assert "not shown again" not in result.output
