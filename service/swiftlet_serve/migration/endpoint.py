"""A service that is asked: an address and its key."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic_core import from_json

from swiftlet_models.regular_file import check_regular
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.endpoints.receipts import HEADER
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes

COPY_HEADER: Final = "x-shadow-copy"
"""The header of every request that is sent. A server does not copy a request with it: two could copy for ever."""
MAX_RESPONSE_BYTES: Final = 1 << 26
NO_RESPONSE: Final = "no response"
UNREADABLE: Final = "not JSON"


class Reply(NamedTuple):
    """What an endpoint responded."""

    outcome: str  # the status, or what there is instead of a response
    seconds: float = 0.0
    content: Any = None  # the body as plain JSON; None unless the status is 200
    receipt: str = ""  # of a server of Swiftlet


class Endpoint:
    """Sends each request once and unchanged. It follows no redirection: a key goes to no other address."""

    def __init__(self, url: str, key: str, timeout_s: float, max_bytes: int = MAX_RESPONSE_BYTES) -> None:
        """Opens no connection yet.

        Args:
            url: the address before the paths of requests.
            key: the API key, or nothing.
            timeout_s: the longest time for a response, from the first byte that is sent to the last one that comes.
            max_bytes: the largest body of a response. A larger one is no response.

        Raises:
            SetupError: the address or the key is invalid.
        """
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            (parts.hostname or "").encode("idna")
        except ValueError:  # of the port, or of a part of the name that is empty or too long
            is_valid = False
        if not is_valid or not (url.isascii() and url.isprintable()) or set(url) & set("@?# "):
            raise SetupError("An endpoint is an address such as https://api.example/v1, without a name or a key.")
        check_key(key)
        self._client = Client(url, max_bytes)
        self._headers = {COPY_HEADER: "1"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s

    async def ask(self, path: str, body: bytes) -> Reply:
        """Sends a request. An error is a reply, too."""
        request = request_bytes(self._client.prefix + path, body, self._headers, host=self._client.host)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.send(request)
        except (OSError, ConnectionLost):  # TimeoutError is an OSError
            return Reply(NO_RESPONSE)
        seconds = time.perf_counter() - started
        if response.status != 200:
            return Reply(str(response.status))
        try:
            return Reply("200", seconds, from_json(response.body), response.headers.get(HEADER.lower(), ""))
        except ValueError:
            return Reply(UNREADABLE)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


def check_key(key: str) -> None:
    """Raises SetupError if a key has a character that no header can have."""
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SetupError("An API key has a character that no header can have. It must be one line of ASCII.")


def read_key(file: Path | None, variable: str) -> str:
    """Returns the key in a file, or else in a variable of the environment that may be empty.

    Raises:
        SetupError: the file cannot be read, is no regular file, or is empty.
    """
    if file is None:
        return variable.strip()
    try:
        check_regular(file)
        key = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise SetupError(f"The key file {file} cannot be read. Give a regular file that this user may read.") from None
    if not key:
        raise SetupError(f"The key file {file} is empty. Write the key to it.")
    return key
