"""A server that answers everything at once with the same answer, to find out what a load generator manages alone.

Run as `python loadtest/null_server.py`; prints its address.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import uvloop

ANSWER = json.dumps([{"label": "", "answer": "", "token_str": ""}]).encode()  # of every task
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Null(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        found = LENGTH.search(head)
        if end and len(rest) >= int(found[1] if found else 0):
            self._buffer = b""
            self._transport.write(REPLY)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Null, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
