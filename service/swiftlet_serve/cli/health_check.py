"""Asks the server of a container whether it is ready: `python3 -m swiftlet_serve.cli.health_check`.

The exit status is 0 if it is ready. The settings of the server give the address: the command line of the container's
first process, and the environment. A container runs this every few seconds, so it imports only parts of the standard
library.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_S = 2.0
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound to


def main() -> int:
    """Returns the exit status."""
    with open("/proc/1/cmdline", "rb") as file:  # pathlib takes half of the time of a check
        arguments = file.read().decode(errors="replace").split("\0")
    return 0 if is_ready(*address(os.environ, arguments)) else 1


def address(environment: Mapping[str, str], arguments: Sequence[str]) -> tuple[str, int, bool]:
    """Returns the host, the port and whether it is HTTPS, of the admin port if the server has one.

    Args:
        environment: the server's environment variables.
        arguments: the words of its command line.
    """

    def setting(name: str, default: str = "") -> str:
        option = f"--{name.replace('_', '-')}"
        for at, word in enumerate(arguments):
            if word == option and at + 1 < len(arguments):
                return arguments[at + 1]
            if word.startswith(f"{option}="):
                return word.partition("=")[2]
        return environment.get(f"SWIFTLET_{name.upper()}", default)

    if admin_port := setting("admin_port"):
        host, port, is_https = setting("admin_host", "127.0.0.1"), admin_port, False
    else:
        port = setting("port", environment.get("AIP_HTTP_PORT") or "8000")
        host, is_https = setting("host", "127.0.0.1"), bool(setting("tls_cert"))
    return LOOPBACK.get(host, host), int(port), is_https


def is_ready(host: str, port: int, is_https: bool) -> bool:
    """Whether the server answers that it is ready."""
    connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    if is_https:  # the certificate is for the name that clients use
        context = ssl._create_unverified_context()  # noqa: S323  # the server is in the same container
        connection = HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False


if __name__ == "__main__":
    sys.exit(main())
