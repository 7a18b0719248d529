"""The three transports in front of the gate give equal answers, errors and records to equal requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx2
import numpy as np
import pytest
import uvicorn

from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.connections.listener import Listener, bind
from swiftlet_serve.http.connections.port import Port
from swiftlet_serve.http.gate.api_keys import ApiKeys, make_key
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support import grpc_server
from tests.support.apps import SECRET, make_gated_runtime, make_runtime
from tests.support.connections import until
from tests.support.fakes import PATIENCE_S

KEY, LINE = make_key("alice")
TEXTS = ["fine", "so-so", "한국어 🎬", "e\u0301"]
MODEL = "tiny-classify"


class Answer(NamedTuple):
    """What a client sees, in the terms of HTTP."""

    code: str
    """The error code; empty if there is no error."""
    labels: Any
    headers: Mapping[str, str]


Ask = Callable[..., Awaitable[Answer]]
"""Asks for the labels of texts. Keyword arguments are headers, with _ for -."""


@asynccontextmanager
async def http(runtime: Runtime, keys: ApiKeys | None, records: list[RequestRecord]) -> AsyncIterator[Ask]:
    app = create_app(runtime, keys, [records.append])
    await runtime.open()
    port = Port(app.gate, Listener(bind("127.0.0.1", 0)), runtime.settings)
    await port.serve()
    async with httpx2.AsyncClient(base_url=port.url, timeout=PATIENCE_S) as client:
        yield over_http(client)
    await port.abort()
    await runtime.close()


@asynccontextmanager
async def asgi(runtime: Runtime, keys: ApiKeys | None, records: list[RequestRecord]) -> AsyncIterator[Ask]:
    listener = bind("127.0.0.1", 0)
    app = create_app(runtime, keys, [records.append])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    serving = asyncio.ensure_future(server.serve([listener]))
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        yield over_http(client)
    server.should_exit = True
    await serving


def over_http(client: httpx2.AsyncClient) -> Ask:
    async def ask(texts: list[str], model: str = MODEL, **headers: str) -> Answer:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}, headers=named)
        if response.status_code != 200:
            return Answer(response.json()["code"], None, response.headers)
        outputs = {output["name"]: output for output in response.json()["outputs"]}
        labels = np.array(outputs["label"]["data"]).reshape(outputs["label"]["shape"]).tolist()
        return Answer("", labels, response.headers)

    return ask


@asynccontextmanager
async def over_grpc(runtime: Runtime, keys: ApiKeys | None, records: list[RequestRecord]) -> AsyncIterator[Ask]:
    async with grpc_server.serving(runtime, keys, [records.append]) as (_, client):

        async def ask(texts: list[str], model: str = MODEL, **headers: str) -> Answer:
            call = client.call("ModelInfer", grpc_server.request(model, {"text": texts}), **headers)
            try:
                response = await call
            except grpc.aio.AioRpcError as error:
                metadata = dict(error.trailing_metadata())
                return Answer(metadata["error-code"], None, metadata)
            assert isinstance(response, pb.ModelInferResponse)
            return Answer("", grpc_server.columns(response)["label"], dict(await call.trailing_metadata()))

        yield ask


TRANSPORTS = pytest.mark.parametrize("transport", [http, asgi, over_grpc])


def runtime_of(artifact_dir: Path, **settings: Any) -> Runtime:
    return make_runtime(artifact_dir, grpc_port=0, **settings)


@TRANSPORTS
async def test_answers_and_records_are_those_of_the_pipeline(transport, artifact_dir: Path):
    records: list[RequestRecord] = []

    async with transport(runtime_of(artifact_dir), None, records) as ask:
        answer = await ask(TEXTS, x_request_id="r-1")
        alone = [(await ask([text])).labels[0] for text in TEXTS]
    assert (answer.code, answer.labels) == ("", alone)
    assert answer.headers["x-request-id"] == "r-1"
    assert int(answer.headers["x-input-tokens"]) > len(TEXTS)
    assert {(record.status, record.model, record.method) for record in records} == {(200, MODEL, "POST")}
    assert (records[0].id, records[0].sequences) == ("r-1", len(TEXTS))
    assert set(records[0].stages) == {"parse", "encode", "queue", "batch", "infer", "decode"}


@TRANSPORTS
async def test_errors_have_the_same_code_and_no_text_of_the_request(transport, artifact_dir: Path):
    records: list[RequestRecord] = []

    async with transport(runtime_of(artifact_dir), None, records) as ask:
        answers = {
            "unknown_model": await ask([SECRET], model="nope"),
            "empty_input": await ask([SECRET, " "]),
            "validation_failed": await ask([SECRET], x_request_timeout_ms="soon"),
        }
    for code, answer in answers.items():
        assert answer.code == code
        assert SECRET not in str(answer)
        assert answer.headers["x-request-id"]
    assert [record.code for record in records] == ["unknown_model", "empty_input", "validation_failed"]
    assert not any(record.accepted for record in records)


@TRANSPORTS
async def test_keys_are_checked_and_name_the_client(transport, artifact_dir: Path):
    records: list[RequestRecord] = []

    async with transport(runtime_of(artifact_dir), ApiKeys([LINE]), records) as ask:
        codes = [(await ask(TEXTS, **headers)).code for headers in ({}, {"x_api_key": "no"}, {"x_api_key": KEY})]
    assert codes == ["missing_key", "bad_key", ""]
    assert records[-1].client == "alice"


@TRANSPORTS
async def test_limits_of_clients_count_every_transport(transport, artifact_dir: Path):
    async with transport(runtime_of(artifact_dir, client_rate_limit=0.001), None, []) as ask:
        first, second = await ask(["a"]), await ask(["a"])
    assert (first.code, second.code) == ("", "quota_exceeded")
    assert int(second.headers["retry-after"]) >= 999


@TRANSPORTS
async def test_draining_server_refuses(transport, artifact_dir: Path):
    runtime = runtime_of(artifact_dir)
    async with transport(runtime, None, []) as ask:
        assert (await ask(["a"])).code == ""
        runtime.admission.close()
        assert (await ask(["a"])).code == "draining"


@TRANSPORTS
async def test_panic_is_an_error_of_its_request(transport, artifact_dir: Path, monkeypatch):
    class Panic(BaseException):
        """As a panic of a library in Rust, which is no `Exception`."""

    async def panic(*_: object) -> None:
        raise Panic

    records: list[RequestRecord] = []

    async with transport(runtime_of(artifact_dir), None, records) as ask:
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "answer", panic)
            assert (await ask(["a"])).code == "internal"
        assert (await ask(["a"])).code == ""
    assert [(record.status, record.code) for record in records] == [(500, "internal"), (200, "")]


@TRANSPORTS
async def test_deadline_ends_a_request_whose_engine_is_slow(transport, artifact_dir: Path):
    records: list[RequestRecord] = []

    runtime, engine = make_gated_runtime(artifact_dir, grpc_port=0)
    async with transport(runtime, None, records) as ask:
        answer = await ask(["a"], x_request_timeout_ms="100")
        assert answer.code in ("deadline_exceeded", "deadline_too_short")
        (await engine.called()).finish([np.zeros((1, 2), np.float32)])
    assert [record.status for record in records] == [504]


@TRANSPORTS
async def test_client_that_leaves_ends_the_work_for_it(transport, artifact_dir: Path):
    """Its sequence leaves the queue, and its record tells that it was not answered."""
    records: list[RequestRecord] = []

    runtime, engine = make_gated_runtime(artifact_dir, grpc_port=0)
    async with transport(runtime, None, records) as ask:
        busy = [asyncio.ensure_future(ask(["a"])) for _ in range(2)]
        calls = [await engine.called() for _ in busy]
        leaving = asyncio.ensure_future(ask(["a"]))
        await until(lambda: runtime.dispatcher.queued_tokens)
        leaving.cancel()
        await until(lambda: records)
        assert (records[0].status, runtime.dispatcher.queued_tokens) == (None, 0)
        for call in calls:
            call.finish([np.zeros((1, 2), np.float32)])
        assert [(await request).code for request in busy] == ["", ""]
    assert [record.status for record in records] == [None, 200, 200]
