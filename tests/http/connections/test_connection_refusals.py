"""Responses to requests that never reach the application."""

from __future__ import annotations

import gc

import pytest
from starlette.responses import Response

from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.gate.request import Head, Request
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.connections import (
    CHUNKED,
    GET,
    HOST,
    POST,
    RecordingGate,
    exchange,
    run,
    serving,
)

pytestmark = pytest.mark.usefixtures("clean_log")


def refuse_path(head: Head) -> Response | None:
    """Refuses one path."""
    return Response(b"no", 503, {"retry-after": "1"}) if head.path == "/no" else None


@pytest.mark.parametrize("body", [b"Content-Length: 5\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
async def test_connection_refuses_by_the_head_and_answers_the_next_request(body):
    async with serving(RecordingGate(refuse_path)) as service:
        client = await service.client()
        client.send(b"POST /no HTTP/1.1\r\n" + HOST + body)
        status, headers, received = await client.response()
        assert (status, headers["retry-after"], received) == (503, "1", b"no")
        assert "connection" not in headers
        client.send((b"5\r\nGET /\r\n0\r\n\r\n" if b"chunked" in body else b"GET /") + GET + b"\r\n")
        status, _, received = await client.response()
        assert (status, received.split(b"|")[0]) == (200, b"GET")
        assert len(service.gate.requests) == 1


async def test_connection_refusal_has_the_form_of_a_response():
    refused = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 2\r\n"

    for method, received in ((b"GET", b"no"), (b"HEAD", b"")):
        line = method + b" /no HTTP/1.1\r\n" + HOST
        gate = RecordingGate(refuse_path)
        answer = await exchange(gate, [line + b"\r\n", line + b"Connection: close\r\n\r\n"])
        assert answer == refused + b"\r\n" + received + refused + b"connection: close\r\n\r\n" + received
        assert gate.requests == []


async def test_connection_answers_a_url_without_a_path():
    gate = RecordingGate()

    answer = await exchange(gate, [b"GET http://a HTTP/1.1\r\n" + HOST + b"\r\n"])
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert gate.requests == [b"GET|/|host|"]


async def test_connection_answers_when_the_gate_fails_at_the_head(caplog):
    def fail(_: Head) -> Response:
        raise LookupError

    gate = RecordingGate(fail)

    answer = await exchange(gate, [POST + b"Content-Length: 5\r\n\r\nabcde" + GET + b"\r\n"])
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert gate.refused == ["internal"]
    assert "LookupError" in caplog.text
    caplog.clear()


async def test_connection_tells_whether_the_body_arrived_with_the_head():
    gate = RecordingGate()

    sized = POST + b"Content-Length: 5\r\n\r\n"
    for pieces in ([sized + b"abcde"], [sized + b"abcde" + GET + b"\r\n"], [GET + b"\r\n"]):
        await exchange(gate, pieces)
    for pieces in ([sized, b"abcde"], [sized + b"abcd", b"e"], [CHUNKED + b"0\r\n\r\n"]):
        await exchange(gate, pieces)
    assert [head.has_whole_body for head in gate.heads] == [True, True, True, True, False, False, False]


def test_connection_leaves_no_reference_cycles(artifact_dir):
    """Collecting the garbage of thousands of connections would block the event loop."""
    requests = [
        ("/classify", b'{"inputs": "a"}', b""),
        ("/classify", b'{"inputs": "a"}', b"X-Request-Timeout-Ms: soon\r\n"),
        ("/classify", b'{"inputs": ["a", "b", "c", "d"]}', b""),  # exceeds the queue
        ("/classify", b'{"inputs": 1}', b""),
        ("/classify", b"{", b""),
        ("/nowhere", b"", b""),
    ]

    async def scenario() -> None:
        models = (str(artifact_dir / "tiny-classify"),)
        runtime = LocalRuntime.load(Settings(models=models, engine="echo", cores=1, max_queued_tokens=64))
        runtime.admission.max_queued_tokens = 8
        app, statuses = create_app(runtime), set()
        async with serving(app.gate) as service:
            for path, body, header in requests * 2:
                client = await service.client()
                for close in (b"", b"Connection: close\r\n"):
                    head = b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n" % (path.encode(), len(body))
                    client.send(head + HOST + header + close + b"\r\n" + body)
                    statuses.add((await client.response())[0])
                client.writer.close()
            await service.until_settled()
        await runtime.close()
        assert statuses == {200, 400, 404, 422, 503}

    gc.collect()
    gc.disable()
    try:
        run(scenario())
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = Connection | RequestRecord | Request
        left = [type(one) for one in gc.garbage if isinstance(one, kinds)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "DELETE", "HEAD", "OPTIONS", "GET"])
async def test_connection_refuses_unsupported_methods(method, artifact_dir):
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo", cores=1))
    app = create_app(runtime)
    async with serving(app.gate) as service:
        client = await service.client()
        target = "a:443" if method == "CONNECT" else "/classify"
        client.send(f"{method} {target} HTTP/1.1\r\nConnection: close\r\n".encode() + HOST + b"\r\n")
        answer = await client.until_closed()
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nallow: " in answer
    await runtime.close()


async def test_refused_request_that_waits_for_100_ends_its_connection():
    """Its client may send the body or leave it out, so that the next bytes could be either."""
    gate = RecordingGate(lambda _: Response(b"no", 404))
    waiting = POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"

    refused = await exchange(gate, [waiting])
    whole = await exchange(gate, [waiting + b"abc"])

    assert b"\r\nconnection: close\r\n" in refused
    assert b"connection: close" not in whole
    assert b"100 Continue" not in refused + whole


@pytest.mark.parametrize(
    ("sent", "continues"),
    [
        ([POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", b"abc"], True),
        ([POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"], False),  # the body is there
        ([b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n", b"abc"], False),
    ],
)
async def test_connection_sends_100_only_to_those_who_wait_for_it(sent, continues):
    answer = await exchange(RecordingGate(), sent)

    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 " if continues else b"HTTP/1.1 200 ")
