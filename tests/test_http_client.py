"""The HTTP client of the load generators and of `swiftlet shadow`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from swiftlet_serve.http_client import Client, ConnectionLost, Response, request_bytes

REQUEST = request_bytes("/a", b"{}")


@asynccontextmanager
async def answering(*answers: bytes):
    """Serves each connection these answers, one for each request, and then closes it. Yields the URL and requests."""
    requests = []

    async def serve(reader, writer):
        for answer in answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            requests.append(head + await reader.readexactly(length))
            for piece in answer.split(b"|"):  # as packets of their own
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests


def run(work: Callable[[Client], Awaitable[object]], *answers: bytes, **options: int):
    async def main():
        async with answering(*answers) as (url, requests):
            client = Client(url, **options)
            result = await work(client)
            client.close()
            return result, requests

    return asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-|Length: 5\r\n\r\nhe|llo",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n|3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n|HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhel|lo",  # ends with its connection
    ],
)
def test_client_reads_every_form_of_a_body(answer):
    response, requests = run(lambda client: client.send(REQUEST), answer)

    assert (response.status, response.reason, response.body) == (200, "OK", b"hello")
    assert requests == [REQUEST]


@pytest.mark.parametrize("head", [b"Content-Length: 5\r\n\r\n", b"\r\n"])
def test_body_that_is_too_large_is_no_response(head):
    answer = b"HTTP/1.1 200 OK\r\n" + head + b"he|llo"
    response, _ = run(lambda client: client.send(REQUEST), answer, max_bytes=5)
    assert response.body == b"hello"
    with pytest.raises(ConnectionLost):
        run(lambda client: client.send(REQUEST), answer, max_bytes=4)


def test_client_keeps_a_connection_for_the_next_request():
    async def twice(client: Client) -> list[int]:
        return [(await client.send(REQUEST)).status for _ in range(2)]

    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"]
    statuses, _ = run(twice, *answers)

    assert statuses == [200, 404]


def test_client_opens_a_new_connection_after_a_closed_one():
    async def twice(client: Client) -> list[int]:
        return [(await client.send(REQUEST)).status for _ in range(2)]

    answers = [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", b"never sent"]
    statuses, _ = run(twice, *answers)

    assert statuses == [200, 200]


def test_client_expects_no_body_after_head():
    async def head_and_post(client: Client) -> list[bytes]:
        requests = (request_bytes("/a", method="HEAD"), REQUEST)
        return [(await client.send(request)).body for request in requests]

    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"]
    bodies, _ = run(head_and_post, *answers)

    assert bodies == [b"", b"no"]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", b"not HTTP\r\n\r\n"])
def test_client_raises_if_a_response_is_incomplete(answer):
    with pytest.raises(ConnectionLost):
        run(lambda client: client.send(REQUEST), answer)


def test_client_reads_its_url():
    client = Client("http://example.org:81/v1/")

    assert (client.host, client.prefix) == ("example.org:81", "/v1")


@pytest.mark.parametrize(("value", "seconds"), [("3", 3.0), ("soon", 0.0), ("", 0.0)])
def test_response_has_the_seconds_of_retry_after(value, seconds):
    assert Response(503, "", {"retry-after": value}, b"").retry_after == seconds


def test_request_has_its_headers_once():
    request = request_bytes("/a", b"x", {"Content-Type": "text/plain"}, "PUT", host="h", close=True)

    assert request.decode().split("\r\n") == [
        "PUT /a HTTP/1.1",
        "host: h",
        "content-length: 1",
        "content-type: text/plain",
        "connection: close",
        "",
        "x",
    ]
