"""Parsing of requests: framing and limits on sizes."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.connections import (
    CHUNKED,
    GET,
    HOST,
    LINE,
    POST,
    RecordingGate,
    cut,
    exchange,
    run,
    serving,
)

pytestmark = pytest.mark.usefixtures("clean_log")

MALFORMED = {
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": GET + b"Host: b\r\n\r\n",
    "the same Host twice": GET + HOST + b"\r\n",
    "a Host with a blank": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a Host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a Host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "two Hosts in one": b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "another host's address": b"GET http://b/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "another scheme's address": b"GET ftp://a/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "an address with a user": b"GET http://u@a/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "no address": b"GET  HTTP/1.1\r\n" + HOST + b"\r\n",
    "an address that is not ASCII": "GET /é HTTP/1.1\r\n".encode() + HOST + b"\r\n",
    "length, then coding": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding, then length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two lengths in one": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "an endless length": POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
    "an empty length": POST + b"Content-Length:\r\n\r\nabc",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding that is none": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding in HTTP/1.0": b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": GET + b"X: a\r\n b\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "one bare line feed": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "a bare carriage return": GET + b"X: a\rb\r\n\r\n",
    "a NUL": GET + b"X: a\x00b\r\n\r\n",
    "a blank before the colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "a blank in a name": GET + b"X Y: a\r\n\r\n",
    "a header without a name": GET + b": a\r\n\r\n",
    "a header without a colon": GET + b"X\r\n\r\n",
    "a blank first": b" GET / HTTP/1.1\r\n" + HOST + b"\r\n",
    "an endless method": b"G" * 5000 + b" / HTTP/1.1\r\n" + HOST + b"\r\n",
    "an unknown method": b"SPAM / HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 by name": b"GET / HTTP/0.9\r\n" + HOST + b"\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100f5010000f10303"),
    "noise": bytes(range(256)),
    "a chunk's size that is none": CHUNKED + b"zz\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\n\r\n",
    "an endless chunk": CHUNKED + b"f" * 17 + b"\r\n\r\n",
    "a signed chunk": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "a hexadecimal chunk": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk of bare line feeds": CHUNKED + b"3\nabc\n0\n\n",
    "a chunk that goes on": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk with no end": CHUNKED + b"3\r\nabc0\r\n\r\n",
    "a last chunk that goes on": CHUNKED + b"0\r\nab\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("size", [1 << 18, 1], ids=["at once", "byte by byte"])
async def test_parser_rejects_malformed_requests(case, size):
    """The server sends one response, and none to the request that follows."""

    app = RecordingGate()
    data = MALFORMED[case] + GET + b"\r\n"
    received = await exchange(app, [data[start : start + size] for start in range(0, len(data), size)])
    assert app.requests == []
    assert len(re.findall(rb"HTTP/1.1 \d", received)) == 1
    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b'"code":"bad_framing"' in received


WELL_FORMED = [
    (GET + b"\r\n", b"GET|/|host|"),
    (b"\r\nGET /a?b=c HTTP/1.1\r\n" + HOST + b"\r\n", b"GET|/a|host|"),
    (b"GET http://A/a HTTP/1.1\r\n" + HOST + b"\r\n", b"GET|/a|host|"),
    (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", b"OPTIONS|*|host|"),
    (b"HEAD / HTTP/1.1\r\nhOST:\r\n\r\n", b"HEAD|/|host|"),
    (POST + b"Content-Length: 8\r\n\r\nab\r\n\r\ncd", b"POST|/|host,content-length|ab\r\n\r\ncd"),
    (CHUNKED + b"3\r\nabc\r\n6;x=y\r\n\r\n\r\nde\r\n0\r\n\r\n", b"POST|/|host,transfer-encoding|abc\r\n\r\nde"),
    # Trailers do not become headers.
    (CHUNKED + b"3\r\nabc\r\n0\r\nX-Key: 1\r\nHost: b\r\n\r\n", b"POST|/|host,transfer-encoding|abc"),
    # The server ignores upgrades, and a body that looks like a request stays a body.
    (
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 9\r\n\r\nGET / HTT",
        b"POST|/|host,connection,content-length|GET / HTT",
    ),
    (GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"GET|/|host,connection,upgrade|"),
]


@given(st.lists(st.sampled_from(WELL_FORMED), min_size=1, max_size=6), st.lists(st.integers(0, 1 << 16), max_size=12))
@example(WELL_FORMED, [])
@example(WELL_FORMED, list(range(1 << 12)))
def test_parser_reads_requests_cut_at_any_place(requests, places):
    async def scenario() -> None:
        app = RecordingGate()
        data = b"".join(request for request, _ in requests)
        received = await exchange(app, cut(data, *places))
        assert app.requests == [meaning for _, meaning in requests]
        assert received.count(b"HTTP/1.1 200 OK\r\n") == len(requests)
        assert app.max_in_progress == 1

    run(scenario())


async def test_parser_accepts_http_1_0_without_host():
    """Health checks of some load balancers still use HTTP/1.0."""

    async with serving() as service:
        client = await service.client()
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.response())[0] == 200
        assert await client.until_closed() == b""


@pytest.mark.parametrize(
    ("line", "headers", "status", "code"),
    [
        (LINE, 63, 200, None),
        (LINE, 64, 431, "headers_too_large"),
        (LINE, 100_000, 431, "headers_too_large"),
        (b"GET /" + b"x" * 8191 + b" HTTP/1.1\r\n", 0, 200, None),
        (b"GET /" + b"x" * 8192 + b" HTTP/1.1\r\n", 0, 414, "uri_too_long"),
        (b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n", 0, 414, "uri_too_long"),
        (LINE + b"X: " + b"x" * (16_384 - 33) + b"\r\n", 0, 200, None),
        (LINE + b"X: " + b"x" * (16_384 - 32) + b"\r\n", 0, 431, "headers_too_large"),
        (LINE + b"X: " + b"x" * 10_000_000 + b"\r\n", 0, 431, "headers_too_large"),
        (b"\r\n" * 100_000, 0, 431, "headers_too_large"),
        (CHUNKED + b"0\r\nX: " + b"x" * 10_000_000 + b"\r\n", 0, 431, "headers_too_large"),
        (CHUNKED + b"1;x=" + b"x" * 10_000_000 + b"\r\n", 0, 431, "headers_too_large"),
    ],
)
async def test_parser_limits_the_size_of_the_head(line, headers, status, code):
    """The client can read the error although it sends more than the server reads."""

    async with serving() as service:
        client = await service.client()
        client.send(line + HOST + b"X: y\r\n" * headers + b"\r\n")
        if code:
            await client.assert_refused(status, code)
        else:
            assert (await client.response())[0] == status


async def test_parser_reads_one_byte_chunks_quickly():
    app = RecordingGate()
    data = CHUNKED + b"1\r\na\r\n" * 65_536 + b"0\r\n\r\n"
    started = time.process_time()
    await exchange(app, cut(data, 1 << 18))
    assert time.process_time() - started < 0.5  # 0.03 alone; h11 takes as much for a tenth of it
    assert len(app.requests[0]) == 65_536 + len(b"POST|/|host,transfer-encoding|")


def framed(extension: int, trailer: int) -> bytes:
    """Returns a chunked request with so many bytes before its content, and so many behind it."""
    content = b"x" * 1000
    start = b"3e8;" + b"x" * (extension - 6) + b"\r\n"
    end = b"\r\n0\r\nX: " + b"x" * (trailer - 12) + b"\r\n\r\n"
    assert (len(start), len(end)) == (extension, trailer)
    return CHUNKED + start + content + end


@pytest.mark.parametrize("size", [1 << 18, 1000, 7], ids=["at once", "in pieces", "in small pieces"])
@pytest.mark.parametrize(
    ("extension", "trailer", "is_allowed"),
    [
        (16_000, 16_000, True),
        (16_385, 100, False),
        (20_000, 100, False),
        (100, 16_385, False),
        (100, 24_000, False),
    ],
)
async def test_parser_limits_the_framing_of_a_chunked_body(extension, trailer, is_allowed, size):
    """However the bytes arrive: with the content and the end in one read, too."""

    app, data = RecordingGate(), framed(extension, trailer)
    received = await exchange(app, [data[start : start + size] for start in range(0, len(data), size)])
    assert (b" 200 OK" in received, b"headers_too_large" in received) == (is_allowed, not is_allowed)
    assert len(app.requests) == is_allowed


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 1000)), max_size=40),
    st.lists(st.integers(0, 1 << 15), max_size=9),
)
def test_parser_counts_only_the_framing_between_two_pieces_of_content(chunks, places):
    """All extensions together may be as large as they like."""

    async def scenario() -> None:
        app = RecordingGate()
        body = b"".join(b"%x;%b\r\n%b\r\n" % (size, b"e" * extension, b"c" * size) for size, extension in chunks)
        received = await exchange(app, cut(CHUNKED + body + b"0\r\n\r\n", *places))
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert app.requests[0].endswith(b"|" + b"c" * sum(size for size, _ in chunks))

    run(scenario())
