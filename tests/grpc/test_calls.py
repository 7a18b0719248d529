"""Calls as requests: keys, limits, deadlines, priorities, records and the statuses of errors."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.grpc.calls import STATUSES
from swiftlet_serve.grpc.port import GrpcPort
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.gate.api_keys import ApiKeys, make_key
from swiftlet_serve.http.gate.request import Head, Request
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.tracing import Tracer
from tests.support.apps import MAX_BODY_BYTES, SECRET, make_runtime
from tests.support.fakes import PATIENCE_S, ManualEngine
from tests.support.gated_runtime import gate_classify
from tests.support.grpc_server import Client, columns, request, serving

FINE = request("classify", {"text": ["fine"]})


@pytest.fixture
def runtime(artifact_dir) -> LocalRuntime:
    return make_runtime(artifact_dir, grpc_port=0)


@pytest.fixture
def gated(artifact_dir) -> tuple[LocalRuntime, ManualEngine]:
    """A runtime with one core whose engine answers on command."""
    models = (str(artifact_dir / "tiny-classify"),)
    runtime = LocalRuntime.load(Settings(models=models, engine="echo", cores=1, grpc_port=0, max_queued_tokens=64))
    return runtime, gate_classify(runtime, width=2)


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_every_error_has_a_status():
    errors = [kind for kind in SwiftletError.__subclasses__() if kind.__module__.startswith("swiftlet_serve")]
    transport = {405, 408, 414, 415, 431}  # only HTTP/1.1 has them

    assert {kind.status for kind in errors} - transport == STATUSES.keys()


async def test_metadata_of_calls_and_answers(runtime):
    records: list[RequestRecord] = []

    async with serving(runtime, observers=[records.append]) as (_, client):
        long = request("classify", {"text": ["a " * 100]})
        call = client.call("ModelInfer", long, x_request_id="mine-1", x_request_priority="bulk", traceparent="00-1")
        await call
        metadata = dict(await call.trailing_metadata())
    told = {"x-compute-tokens": "48", "x-input-tokens": "102", "x-truncated": "1"}
    assert metadata.keys() == {"server-timing", "x-request-id", *told}
    assert metadata.items() >= told.items()
    assert metadata["x-request-id"] == "mine-1"
    assert "infer;dur=" in metadata["server-timing"]
    (record,) = records
    assert (record.id, record.route, record.status, record.bulk) == (
        "mine-1",
        "/inference.GRPCInferenceService/ModelInfer",
        200,
        True,
    )
    assert (record.client, record.dialect, record.model, record.traceparent) == (
        "127.0.0.1",
        "open-inference-grpc",
        "tiny-classify",
        "00-1",
    )
    # gRPC rounds a timeout of 10 to 100 seconds up to a tenth of a second, on the client's clock.
    assert 0 < record.timeout_s <= PATIENCE_S + 1


async def test_panic_is_an_error_of_its_call(runtime, monkeypatch):
    class Panic(BaseException):
        """As a panic of a library in Rust, which is no `Exception`."""

    records: list[RequestRecord] = []

    async def answer(*_: object) -> None:
        raise Panic

    async with serving(runtime, observers=[records.append]) as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "answer", answer)
            error = await client.fail("ModelInfer", FINE)
        await client.call("ModelInfer", FINE)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert [(record.status, record.code) for record in records] == [(500, "internal"), (200, "")]


async def test_calls_are_counted_as_a_dialect(runtime):
    async with serving(runtime) as (_, client):
        await client.call("ModelInfer", FINE)
        await client.fail("ModelInfer", request("no", {"text": ["fine"]}))
    assert runtime.stats.dialects == {("open-inference-grpc", "2xx"): 1, ("open-inference-grpc", "4xx"): 1}


@pytest.mark.parametrize(
    ("metadata", "code"),
    [({}, "missing_key"), ({"x_api_key": "wrong"}, "bad_key"), ({"authorization": "Basic x"}, "missing_key")],
)
async def test_methods_need_an_api_key_except_liveness(metadata, code, runtime):
    key, line = make_key("team")

    async with serving(runtime, ApiKeys([line])) as (_, client):
        assert (await client.call("ServerLive", pb.ServerLiveRequest())).live
        assert (await client.call("ServerReady", pb.ServerReadyRequest())).ready
        await client.call("ModelInfer", FINE, authorization=f"Bearer {key}")
        await client.call("RepositoryIndex", pb.RepositoryIndexRequest(), x_api_key=key)
        result = [
            await client.fail("ModelInfer", FINE, **metadata),
            await client.fail("RepositoryIndex", pb.RepositoryIndexRequest(), **metadata),
        ]
    for error in result:
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error.trailing_metadata()["error-code"] == code
        assert "API key" in error.details()


async def test_rate_limit_is_that_of_all_ports(artifact_dir):
    runtime = make_runtime(artifact_dir, grpc_port=0, client_rate_limit=0.001)
    gate = create_app(runtime).gate

    async with serving(runtime) as (_, client):
        first = gate.begin(Head("POST", "/classify", [], "127.0.0.1", time.monotonic()))
        assert isinstance(first, Request)  # the only request that the limit allows
        error = await client.fail("ModelInfer", FINE)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    metadata = error.trailing_metadata()
    assert metadata["error-code"] == "quota_exceeded"
    assert int(metadata["retry-after"]) >= 999
    assert 999_000 <= int(metadata["grpc-retry-pushback-ms"]) <= 1_000_000


async def test_rate_limit_of_tokens_admits_one_of_several_calls(artifact_dir):
    runtime = make_runtime(artifact_dir, grpc_port=0, client_token_rate_limit=0.001)

    async with serving(runtime) as (_, client):
        calls = [client.call("ModelInfer", FINE) for _ in range(8)]
        result = await asyncio.gather(*calls, return_exceptions=True)
    refused = [one for one in result if isinstance(one, grpc.RpcError)]
    assert len(refused) == 7
    assert {one.code() for one in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all("rate limit of tokens" in one.details() for one in refused)


async def test_deadline_of_the_call_is_that_of_the_request(gated):
    """The engine never answers. The client's library ends the call, and the server forgets its request."""
    runtime, engine = gated

    async with serving(runtime) as (_, client):
        error = await client.fail("ModelInfer", FINE, timeout=0.2)
        await until(lambda: not runtime.stats.models["tiny-classify"].in_flight)
        (await engine.called()).finish()
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert runtime.stats.models["tiny-classify"].durations["answered"].count == 0


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("value", ["-1", "0", "nan", "1e308", "inf", "0.5", "", "600001", "99999999", "soon"])
async def test_invalid_timeout_in_the_metadata_is_an_invalid_argument(value, timeout, runtime):
    """As over HTTP, and also if the call has a deadline of its own."""

    async with serving(runtime) as (_, client):
        error = await client.fail("ModelInfer", FINE, timeout=timeout, x_request_timeout_ms=value)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "X-Request-Timeout-Ms" in error.details()


@pytest.mark.parametrize(("timeout", "asked", "expected"), [(60, "5000", 5), (5, "60000", 5), (None, "5000", 5)])
async def test_earlier_of_two_deadlines_counts(timeout, asked, expected, runtime):
    records: list[RequestRecord] = []

    async with serving(runtime, observers=[records.append]) as (_, client):
        await client.call("ModelInfer", FINE, timeout=timeout, x_request_timeout_ms=asked)
    assert records[0].timeout_s == pytest.approx(expected, abs=PATIENCE_S / 3)
    assert records[0].timeout_s <= expected + 1  # gRPC rounds the time that is left


async def test_exemplars_have_the_trace_ids_of_calls(runtime):
    """The tracer sets the ID before the statistics read it."""
    tracer = Tracer(SimpleSpanProcessor(InMemorySpanExporter()), "1")
    trace = "0af7651916cd43dd8448eb211c80319c"

    async with serving(runtime, observers=[tracer.trace_request]) as (_, client):
        await client.call("ModelInfer", FINE, traceparent=f"00-{trace}-b7ad6b7169203331-01")
    tracer.close()
    (sample,) = runtime.stats.models["tiny-classify"].exemplars.values()
    assert sample.trace_id == trace


async def test_cancelled_call_leaves_the_queue(gated):
    runtime, engine = gated
    records: list[RequestRecord] = []

    async with serving(runtime, observers=[records.append]) as (_, client):
        running = client.call("ModelInfer", FINE)
        held = await engine.called()
        waiting = client.call("ModelInfer", FINE)
        await until(lambda: runtime.dispatcher.queue_state().sequences == 1)
        waiting.cancel()
        await until(lambda: runtime.dispatcher.queue_state().sequences == 0)
        held.finish()
        await running
    assert [record.status for record in records] == [None, 200]


async def test_overload_is_unavailable_and_says_when_to_retry(gated):
    runtime, engine = gated

    async with serving(runtime) as (_, client):
        running = client.call("ModelInfer", FINE)
        held = await engine.called()
        texts = ["abcdefghij" * 2, "abcdefghij"]
        waiting = client.call("ModelInfer", request("classify", {"text": texts}))
        await until(lambda: runtime.dispatcher.queue_state().sequences == 2)
        error = await client.fail("ModelInfer", request("classify", {"text": texts}))
        held.finish()
        await running
        (await engine.called()).finish()
        error, answer = error, await waiting
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    metadata = error.trailing_metadata()
    assert metadata["error-code"] == "overloaded"
    assert int(metadata["retry-after"]) >= 1
    assert int(metadata["grpc-retry-pushback-ms"]) > 0
    assert len(columns(answer)["label"]) == 2


async def test_unexpected_error_is_internal_and_quotes_nothing(runtime, monkeypatch, caplog):
    async def fail(*_: object) -> None:
        raise ValueError(SECRET)

    async with serving(runtime) as (_, client):
        monkeypatch.setattr(type(runtime.pipelines["tiny-classify"]), "answer", fail)
        error = await client.fail("ModelInfer", FINE)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.trailing_metadata()["error-code"] == "internal"
    assert SECRET not in error.details() + caplog.text


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_message_beyond_the_limit_is_refused(compression, runtime):
    """Also one that is small until it is decompressed."""
    large = request("classify", {"text": ["a" * (MAX_BODY_BYTES + 1)]}).SerializeToString()
    assert len(gzip.compress(large)) < MAX_BODY_BYTES

    async with serving(runtime) as (port, _):
        client = Client(port.address)
        async with grpc.aio.insecure_channel(port.address, compression=compression) as client.channel:
            error = await client.fail("ModelInfer", large)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("coding", ["br", "gzip"])
async def test_metadata_does_not_describe_the_message(coding, runtime):
    """A gateway may pass on the headers of an HTTP request. gRPC has a coding of its own."""

    async with serving(runtime) as (_, client):
        assert (await client.call("ModelInfer", FINE, content_encoding=coding)).outputs


async def test_unknown_method_is_unimplemented(runtime):
    async with serving(runtime) as (_, client):
        call = client.channel.unary_unary("/inference.GRPCInferenceService/ModelConfig")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"", timeout=PATIENCE_S)
        result = raised.value.code()
    assert result is grpc.StatusCode.UNIMPLEMENTED


async def test_closing_port_answers_the_accepted_calls(gated):
    runtime, engine = gated

    async with serving(runtime) as (port, client):
        running = client.call("ModelInfer", FINE)
        held = await engine.called()
        closing = asyncio.ensure_future(port.close())
        late = Client(port.address)
        refused = await late.fail("ModelInfer", FINE)
        await late.channel.close()
        assert not closing.done()
        held.finish()
        answer = await running
        await closing
    assert len(columns(answer)["label"]) == 1
    assert refused.code() is grpc.StatusCode.UNAVAILABLE


async def test_aborting_port_ends_the_calls(gated):
    runtime, engine = gated
    records: list[RequestRecord] = []

    async with serving(runtime, observers=[records.append]) as (port, client):
        running = asyncio.ensure_future(client.fail("ModelInfer", FINE))
        held = await engine.called()
        await port.abort()
        error = await running
        held.finish()
    assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert [record.status for record in records] == [None]


async def test_port_in_use_is_an_error(runtime):
    async with serving(runtime) as (port, _):
        number = int(port.address.rpartition(":")[2])
        second = GrpcPort(LocalRuntime.load(runtime.settings.model_copy(update={"grpc_port": number})), None, [])
        with pytest.raises(Exception, match=f"Cannot listen on 127.0.0.1, port {number}"):
            await second.open()
