"""Pipelined requests: sent at once and cut anywhere, they get the answers that they get one by one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from swiftlet_serve.http.app import Application, create_app
from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits
from tests.support.apps import make_runtime
from tests.support.connections import HOST, FakeTransport, cut

ID = b"X-Request-Id: one\r\n"
JSON = b"Content-Type: application/json\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def get(path: bytes, headers: bytes = b"", method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\n" + HOST + ID + headers + b"\r\n"


def post(body: bytes, headers: bytes = b"", path: bytes = b"/classify") -> bytes:
    return get(path, JSON + headers + b"Content-Length: %d\r\n" % len(body), b"POST") + body


def chunked(body: bytes, headers: bytes = b"") -> bytes:
    chunks = b"%x;x=y\r\n%b\r\n0\r\nT: t\r\n\r\n" % (len(body), body)
    return get(b"/classify", JSON + CHUNKED + headers, b"POST") + chunks


VALID, INVALID = b'{"inputs": "a"}', b'{"inputs": 1}'
REQUESTS = {
    "page": get(b"/health/live"),
    "head": get(b"/health/live", method=b"HEAD"),
    "answer": post(VALID),
    "chunked answer": chunked(VALID),
    "answer with an upgrade": post(VALID, UPGRADE),
    "chunked answer with an upgrade": chunked(VALID, UPGRADE),
    "page with an upgrade": get(b"/health/live", UPGRADE),
    "answer with expect": post(VALID, b"Expect: 100-continue\r\n"),
    "404": get(b"/nope"),
    "404 of a body": post(VALID, path=b"/nope"),
    "404 of a model": get(b"/v1/models/none"),
    "405": get(b"/classify"),
    "405 of head": get(b"/classify", method=b"HEAD"),
    "400": post(b"{"),
    "413": post(b" " * 3000),
    "415": post(VALID, b"Content-Encoding: gzip\r\n"),
    "422": post(INVALID),
    "422 of a head": post(VALID, b"X-Request-Timeout-Ms: soon\r\n"),
    "chunked 422": chunked(INVALID),
    "422 with an upgrade": post(INVALID, UPGRADE),
    "close": get(b"/health/live", b"Connection: close\r\n"),
    "HTTP/1.0": b"GET /health/live HTTP/1.0\r\n\r\n",
    "malformed header": b"GET / HTTP/1.1\r\nHost a\r\n\r\n",
    "malformed length": get(b"/", b"Content-Length: x\r\n"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "malformed chunk": get(b"/classify", CHUNKED, b"POST") + b"zz\r\n\r\n",
    "long target": get(b"/" + b"x" * 8192),
}
CLOSING = {
    "415",
    "413",
    "close",
    "HTTP/1.0",
    "malformed header",
    "malformed length",
    "no host",
    "malformed chunk",
    "long target",
}
"""After these, the server closes the connection."""
RESPONSE = re.compile(rb"HTTP/1\.1 (\d+) ")
Send = Callable[..., bytes]


@pytest.fixture(scope="module")
def send(artifact_dir) -> Iterator[Send]:
    """Sends pieces over a connection of their own, and returns the responses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runtime = make_runtime(artifact_dir)
        app = create_app(runtime)
        runner.run(runtime.open())
        yield lambda pieces, **options: runner.run(exchange(app, pieces, **options))
        runner.run(runtime.close())


async def exchange(app: Application, pieces: list[bytes], *, whole: bool = False) -> bytes:
    """Sends a piece once the connection reads on or, if the pieces are `whole` requests, once they are answered."""
    table = ConnectionTable(app.gate, ConnectionLimits())
    connection, transport = Connection(table), FakeTransport()
    connection.connection_made(transport)

    def is_busy() -> bool:
        return bool(table.tasks) or not table.read_scheduler.is_idle

    for piece in pieces:
        if not transport.is_closed:
            connection.data_received(piece)
        while not transport.is_closed and (transport.is_paused or (whole and is_busy())):
            await asyncio.sleep(0)
    while is_busy():
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return b"".join(transport.writes)


def answers(sent: bytes) -> list[tuple[int, bytes]]:
    """Returns the statuses and bodies of responses, without the ID that the server gives to a malformed request."""
    starts = [match.start() for match in RESPONSE.finditer(sent)]
    texts = [sent[start:end] for start, end in pairwise([*starts, len(sent)])]
    return [(int(text.split()[1]), re.sub(rb"[0-9a-f]{32}", b"", text.partition(b"\r\n\r\n")[2])) for text in texts]


@given(st.lists(st.sampled_from(list(REQUESTS)), min_size=1, max_size=5), st.lists(st.integers(0, 1 << 16), max_size=6))
@example(["404", "answer with an upgrade", "page"], [])
@example(["chunked 422", "chunked answer with an upgrade", "405", "malformed header"], [])
@example(list(REQUESTS), [])
@example(["405 of head", "422", "answer"], list(range(1 << 10)))
def test_pipelined_requests_get_the_answers_that_they_get_alone(send, names, places):
    requests = [REQUESTS[name] for name in names]

    alone = answers(send(requests, whole=True))

    assert answers(send([b"".join(requests)])) == alone
    assert answers(send(cut(b"".join(requests), *places))) == alone


@pytest.mark.parametrize("first", REQUESTS)
@pytest.mark.parametrize("second", ["answer", "answer with an upgrade", "malformed header", "422 of a head"])
def test_a_request_gets_its_own_answer_behind_any_other(send, first, second):
    requests = [REQUESTS[first], REQUESTS[second]]
    own = answers(send(requests[1:]))

    found = answers(send([b"".join(requests)]))

    assert found == answers(send(requests[:1])) + ([] if first in CLOSING else own)
