"""Certificates for servers on loopback."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(directory: Path) -> Path:
    """Creates cert.pem and key.pem for 127.0.0.1, and locked.pem, the key with a password. Returns the directory."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl to make a certificate with")
    new = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    new += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    for command in (new, f"{openssl} ec -in key.pem -aes128 -passout pass:word -out locked.pem"):
        subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    return directory
