"""Requests that run a model, on a connection."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from swiftlet_models import tokenizer_safety
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.apps import MAX_BODY_BYTES, make_gated_runtime, make_runtime
from tests.support.artifacts import make_tokenizer
from tests.support.connections import HOST, FakeTransport, cut, exchange, serving, until

BODY = b'{"inputs": "a"}'


def post(body: bytes = BODY, *headers: bytes, path: bytes = b"/classify") -> bytes:
    """Returns a request as bytes. Without a header that frames the body, it has a Content-Length."""
    framing = [] if any(b"transfer-encoding" in one for one in headers) else [b"content-length: %d" % len(body)]
    lines = [b"POST %b HTTP/1.1" % path, HOST.strip(), *framing, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@asynccontextmanager
async def served(runtime, **limits):
    """Serves a runtime. Yields the service, and the records of the requests that have ended."""
    records: list[RequestRecord] = []
    app = create_app(runtime, observers=[records.append])
    async with serving(app.gate, **limits) as service:
        yield service, records
    await runtime.close()


@pytest.mark.parametrize("kind", [b"application/json", b"application/json ; charset=utf-8"])
async def test_model_request_has_the_status_of_its_fault(kind, artifact_dir: Path):
    async with served(make_runtime(artifact_dir)) as (service, records):
        client = await service.client()
        statuses = []
        for body in (
            BODY,
            b'{"inputs": ["a", "b"], "parameters": {"top_k": 1}}',
            b"{",
            b'{"inputs": "\xff"}',
            b'{"inputs": 1}',
            b'{"inputs": "a", "model": "no"}',
            b"",
        ):
            client.send(post(body, b"content-type: " + kind, b"x-request-id: one"))
            status, headers, _ = await client.response()
            statuses.append(status)
            assert headers["x-request-id"] == "one"
        assert statuses == [200, 200, 400, 400, 422, 404, 400]
        assert [record.status for record in records] == statuses


class Panic(BaseException):
    """As a panic of a library in Rust, which is no `Exception`."""


@pytest.mark.parametrize("kind", [b"application/json", b"application/json ; charset=utf-8"])
async def test_panic_of_the_tokenizer_is_an_error_of_its_request(kind, artifact_dir: Path, monkeypatch, caplog):
    """A real one: the regular expression gives up, which the check at load would have prevented."""
    monkeypatch.setattr(tokenizer_safety, "check", lambda _: None)
    regex = {"Regex": "^(([a-z])+.)+[A-Z]([a-z])+$"}
    split = {"type": "Split", "pattern": regex, "behavior": "Removed", "invert": False}
    panics = Tokenizer(make_tokenizer()._document | {"pre_tokenizer": split})
    bad = "a" * 60 + "!"

    runtime = make_runtime(artifact_dir)
    monkeypatch.setattr(runtime.pipelines["tiny-classify"].model.task, "tokenizer", panics)
    async with served(runtime) as (service, records):
        client = await service.client()
        answers = []
        for inputs, partial in (
            (bad, False),
            (bad * 9, False),
            (["a", bad], False),
            (["a", bad], True),
            ("a", False),
        ):
            client.send(post(json.dumps({"inputs": inputs, "partial": partial}).encode(), b"content-type: " + kind))
            status, _, body = await client.response()
            answers.append((status, json.loads(body)))
        assert [status for status, _ in answers] == [500, 500, 500, 200, 200]
        assert {answer["code"] for _, answer in answers[:3]} == {"tokenizer_failed"}
        assert answers[3][1][1]["code"] == "tokenizer_failed"
        assert [record.status for record in records] == [500, 500, 500, 200, 200]
        assert {record.code for record in records[:3]} == {"tokenizer_failed"}
    assert bad not in caplog.text
    assert "a model's tokenizer failed on a text: PanicException" in caplog.text


@pytest.mark.parametrize("kind", [b"application/json", b"application/json ; charset=utf-8"])
async def test_any_panic_is_an_error_of_its_request(kind, artifact_dir: Path, monkeypatch):
    def parse(*_: object) -> None:
        raise Panic

    async with served(make_runtime(artifact_dir)) as (service, records):
        client = await service.client()
        with monkeypatch.context() as patch:
            patch.setattr(bodies, "parse", parse)
            client.send(post(BODY, b"content-type: " + kind))
            status, _, body = await client.response()
        client.send(post(BODY, b"content-type: " + kind))
        assert (status, json.loads(body)["code"]) == (500, "internal")
        assert (await client.response())[0] == 200
        assert [record.status for record in records] == [500, 200]


@pytest.mark.parametrize("path", ["/classify", "/qa", "/fill-mask"])
async def test_model_request_runs_every_task(path, artifact_dir: Path):
    example = {
        "/classify": {"inputs": "a"},
        "/qa": {"inputs": {"question": "who?", "context": "it was me."}},
        "/fill-mask": {"inputs": "a [MASK] b"},
    }[path]

    async with served(make_runtime(artifact_dir)) as (service, _):
        client = await service.client()
        client.send(post(json.dumps(example).encode(), path=path.encode()))
        status, headers, _ = await client.response()
        assert (status, headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ([b"content-type: text/plain"], BODY, 415),
        ([b"content-encoding: gzip"], BODY, 415),
        ([b"content-type: application/json", b"content-type: text/plain"], BODY, 200),
        ([b"transfer-encoding: chunked"], b"f\r\n" + BODY + b"\r\n0\r\n\r\n", 200),
        ([], b" " * (MAX_BODY_BYTES + 1), 413),
        ([b"expect: 100-continue"], BODY, 200),  # the body has arrived
    ],
)
async def test_model_request_may_have_an_unusual_head(headers, body, status, artifact_dir: Path):
    async with served(make_runtime(artifact_dir)) as (service, _):
        client = await service.client()
        client.send(post(body, *headers))
        assert (await client.response())[0] == status


async def test_model_request_accepts_a_body_in_pieces(artifact_dir: Path):
    runtime, records = make_runtime(artifact_dir), list[RequestRecord]()
    app = create_app(runtime, observers=[records.append])
    request = post()
    for places in ((len(request) - 1,), (len(request) - len(BODY),), (20, 60, len(request) - 5)):
        pieces = cut(request, *places)
        sent = await exchange(app.gate, pieces)
        assert sent.startswith(b"HTTP/1.1 200 OK\r\n")
    await runtime.close()
    assert [record.body_bytes for record in records] == [len(BODY)] * 3


async def test_model_requests_are_answered_in_order_when_pipelined(artifact_dir: Path):
    async with served(make_runtime(artifact_dir)) as (service, _):
        client = await service.client()
        client.send(b"".join(post(BODY, b"x-request-id: %d" % i) for i in range(20)) + post(BODY, b"connection: close"))
        ids = [(await client.response())[1]["x-request-id"] for _ in range(20)]
        assert ids == [str(i) for i in range(20)]
        assert (await client.response())[1]["connection"] == "close"
        assert await client.until_closed() == b""


async def test_model_request_ends_the_work_of_a_disconnected_client(artifact_dir: Path):
    """Its sequence leaves the queue, and its record tells that it was not answered."""

    runtime, engine = make_gated_runtime(artifact_dir)
    async with served(runtime) as (service, records):
        busy = [await service.client() for _ in range(2)]
        for client in busy:
            client.send(post())
        calls = [await engine.called() for _ in busy]
        client = await service.client()
        client.send(post())
        await until(lambda: runtime.dispatcher.queued_tokens)
        client.writer.transport.abort()
        await until(lambda: records)
        assert (records[0].status, runtime.dispatcher.queued_tokens) == (None, 0)
        for call in calls:
            call.finish([np.zeros((1, 2), np.float32)])
        assert [(await one.response())[0] for one in busy] == [200, 200]
        assert len(records) == 3
        stats = runtime.stats.models["tiny-classify"]
        assert (stats.in_flight, stats.durations["cancelled"].count, stats.durations["answered"].count) == (0, 1, 2)


@pytest.mark.parametrize("ending", ["disconnect", "timeout"])
async def test_model_request_finishes_the_record_of_an_incomplete_body(ending, artifact_dir: Path):
    limits = {"request_timeout_s": 0.15} if ending == "timeout" else {}
    async with served(make_runtime(artifact_dir), **limits) as (service, records):
        client = await service.client()
        client.send(post()[:-3])
        await until(lambda: (service.table.connections and not service.table.waiting) or records)
        if ending == "timeout":
            await client.assert_refused(408, "receive_timeout")
        else:
            client.writer.transport.abort()
        await until(lambda: records)
        await service.until_settled()
        assert [(record.status, record.code) for record in records] == [(None, "")]


async def test_model_request_waits_for_a_client_that_reads_slowly(artifact_dir: Path):
    runtime, records = make_runtime(artifact_dir), list[RequestRecord]()
    app, transport = create_app(runtime, observers=[records.append]), FakeTransport()
    connection = Connection(ConnectionTable(app.gate, ConnectionLimits()))
    connection.connection_made(transport)
    connection.pause_writing()
    connection.data_received(post())
    await until(lambda: records)
    assert transport.writes == []
    connection.resume_writing()
    await until(lambda: transport.writes)
    connection.connection_lost(None)
    await runtime.close()


async def test_model_request_is_answered_at_the_deadline(artifact_dir: Path):
    runtime, engine = make_gated_runtime(artifact_dir)
    async with served(runtime) as (service, _):
        client = await service.client()
        client.send(post(BODY, b"x-request-timeout-ms: 50"))
        status, _, body = await client.response()
        assert (status, json.loads(body)["code"]) == (504, "deadline_exceeded")
        (await engine.called()).finish([np.zeros((1, 2), np.float32)])
        client.send(post())
        call = await engine.called()
        call.finish([np.zeros((1, 2), np.float32)])
        assert (await client.response())[0] == 200


async def test_model_request_is_answered_draining_when_the_server_cancels(artifact_dir: Path):
    runtime, engine = make_gated_runtime(artifact_dir)
    async with served(runtime) as (service, records):
        client = await service.client()
        client.send(post())
        call = await engine.called()
        for task in service.table.tasks:
            task.cancel()
        status, _, body = await client.response()
        assert (status, json.loads(body)["code"]) == (503, "draining")
        assert [record.status for record in records] == [503]
        call.finish([np.zeros((1, 2), np.float32)])
