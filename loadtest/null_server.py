"""A server that sends one fixed response, to measure the highest rate of a load generator.

Run as `python -m loadtest.null_server`. It prints its URL.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import uvloop

BODY = json.dumps([{"label": "", "answer": "", "token_str": ""}]).encode()  # has the fields of every task
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CONTENT_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class NullProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        length = CONTENT_LENGTH.search(head)
        if end and len(body) >= int(length[1] if length else 0):
            self._buffer = b""
            self._transport.write(RESPONSE)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(NullProtocol, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
