"""The services beside the protocol, TLS, and a server process."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from swiftlet_serve.errors import SetupError
from swiftlet_serve.grpc import calls, port
from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.grpc.health import HEALTH
from swiftlet_serve.grpc.open_inference import SERVICE
from swiftlet_serve.http.gate.api_keys import ApiKeys, make_key
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.server import _create_grpc_port
from tests.support.apps import make_runtime
from tests.support.fakes import PATIENCE_S
from tests.support.grpc_server import Client, columns, request, serving
from tests.support.metrics import scrape, total
from tests.support.processes import Process
from tests.support.processes import serving as serving_process

FINE = request("classify", {"text": ["fine"]})
SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


@pytest.fixture
def runtime(artifact_dir) -> LocalRuntime:
    return make_runtime(artifact_dir, grpc_port=0)


def health_method(client: Client, kind: str, name: str) -> Any:
    return getattr(client.channel, kind)(
        f"/{HEALTH}/{name}",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_is_that_of_the_server(service, runtime):
    _, line = make_key("team")  # health checks need no key

    async with serving(runtime, ApiKeys([line])) as (_, client):
        check = health_method(client, "unary_unary", "Check")
        watch = health_method(client, "unary_stream", "Watch")
        asked = health_pb2.HealthCheckRequest(service=service)
        watching = aiter(watch(asked))
        seen = [(await check(asked)).status, (await anext(watching)).status]
        runtime.leave()
        result = [*seen, (await check(asked)).status, (await anext(watching)).status]
    assert result == [SERVING, SERVING, NOT_SERVING, NOT_SERVING]


async def test_health_of_an_unknown_service(runtime):
    async with serving(runtime) as (_, client):
        asked = health_pb2.HealthCheckRequest(service="no")
        seen = await anext(aiter(health_method(client, "unary_stream", "Watch")(asked)))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await health_method(client, "unary_unary", "Check")(asked)
        result = seen.status, raised.value.code()
    assert result == (UNKNOWN, grpc.StatusCode.NOT_FOUND)


def reflect(client: Client, *requests: Any, metadata: Any = None, end: bool = True) -> Any:
    async def send() -> Any:
        for each in requests:
            yield each
        if not end:
            await asyncio.Event().wait()

    method = client.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return method(send(), metadata=metadata, timeout=PATIENCE_S)


async def test_reflection_describes_the_protocol(runtime):
    async with serving(runtime) as (_, client):
        call = reflect(
            client,
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        )
        services, file = [response async for response in call]
    assert {one.name for one in services.list_services_response.service} >= {SERVICE, HEALTH}
    described = descriptor_pb2.FileDescriptorProto.FromString(file.file_descriptor_response.file_descriptor_proto[0])
    assert [one.name for one in described.service[0].method] == [
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelInfer",
        "RepositoryIndex",
    ]


async def test_reflection_needs_an_api_key(runtime):
    key, line = make_key("team")
    asked = reflection_pb2.ServerReflectionRequest(list_services="")

    async with serving(runtime, ApiKeys([line])) as (_, client):
        allowed = [one async for one in reflect(client, asked, metadata=[("x-api-key", key)])]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await anext(aiter(reflect(client, asked)))
        allowed, code = allowed, raised.value.code()
    assert len(allowed) == 1
    assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_closing_port_ends_streams(runtime):
    """A client that watches the server's health does not delay its shutdown."""

    async with serving(runtime) as (opened, client):
        watching = aiter(health_method(client, "unary_stream", "Watch")(health_pb2.HealthCheckRequest()))
        await anext(watching)
        asking = reflect(client, reflection_pb2.ServerReflectionRequest(list_services=""), end=False)
        await anext(aiter(asking))
        await opened.close()
        result = [one async for one in watching], [one async for one in asking]
    assert result == ([], [])


async def test_port_speaks_tls_with_the_certificate_of_the_server(artifact_dir, tmp_path):
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl to make a certificate with")
    new = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    new += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(new.split(), cwd=tmp_path, check=True, capture_output=True)
    cert = tmp_path / "cert.pem"
    runtime = make_runtime(artifact_dir, grpc_port=0, tls_cert=cert, tls_key=tmp_path / "key.pem")

    async with serving(runtime) as (opened, plain):
        refused = await plain.fail("ServerLive", pb.ServerLiveRequest())
        client = Client(opened.address, grpc.ssl_channel_credentials(cert.read_bytes()))
        answer = await client.call("ModelInfer", FINE)
        await client.channel.close()
        code, answer = refused.code(), answer
    assert code is grpc.StatusCode.UNAVAILABLE
    assert len(columns(answer)["label"]) == 1


def grpc_address(process: Process) -> str:
    assert process.grpc_address is not None
    return process.grpc_address


async def test_stopping_server_answers_every_call_that_it_takes(artifact_dir):
    """The others fail with a status of the transport, since gRPC cancels calls that arrive while it stops."""

    with serving_process(artifact_dir, "--grpc-port", "0", "--access-log", "true") as server:
        client, codes = Client(grpc_address(server)), Counter()

        async def ask() -> None:
            while codes.total() == codes["answered"]:
                try:
                    await client.call("ModelInfer", FINE)
                    codes["answered"] += 1
                except grpc.aio.AioRpcError as error:
                    codes[error.code()] += 1

        asking = [asyncio.ensure_future(ask()) for _ in range(8)]
        while codes.total() < 40:
            await asyncio.sleep(0)
        series = await scrape(server.port)
        server.stop()
        await asyncio.gather(*asking)
        await client.channel.close()
        codes, status = codes, await asyncio.to_thread(server.wait)

    logged = [line for line in server.stderr.splitlines() if "ModelInfer" in line]
    assert total(series, "swiftlet_dialect_requests_total", dialect="open-inference-grpc", status="2xx") >= 40
    assert status == 0
    assert len(logged) == codes.pop("answered")
    assert all(" status=200 " in line for line in logged)
    assert codes.keys() <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


async def test_connections_of_a_limited_age_lose_no_call(runtime, monkeypatch):
    """After `drain_s` no client is connected to a stopping server, because connections end before."""
    monkeypatch.setattr(port, "MAX_AGE_S", 0.02)
    peers: set[str] = set()
    address = calls._address

    def remember(peer: str) -> Any:
        peers.add(peer)
        return address(peer)

    monkeypatch.setattr(calls, "_address", remember)

    async with serving(runtime) as (_, client):
        count = 0
        while len(peers) < 4:
            await asyncio.gather(*(client.call("ModelInfer", FINE) for _ in range(8)))
            count += 8
    stats = runtime.stats.models["tiny-classify"]
    assert stats.durations["answered"].count == count
    assert not runtime.stats.refused


def test_port_needs_the_extra(runtime, monkeypatch):
    monkeypatch.setitem(sys.modules, "swiftlet_serve.grpc.port", None)
    monkeypatch.setitem(sys.modules, "grpc", None)

    with pytest.raises(SetupError, match=r"grpc_port needs .* pip install grpcio"):
        _create_grpc_port(runtime, None, [], None)


@pytest.mark.exhaustive
def test_server_without_the_port_does_not_import_grpc(artifact_dir):
    code = "import atexit, sys\natexit.register(lambda: print([m for m in sys.modules if m.startswith('grpc')]))"
    with serving_process(artifact_dir, code=code) as server:
        server.stop()
        out, _ = server.process.communicate(timeout=PATIENCE_S)

    assert json.loads(out.splitlines()[-1].replace("'", '"')) == []


def test_modules_are_made_from_the_proto_file(tmp_path):
    from grpc_tools import protoc

    source = Path(pb.__file__).with_name("open_inference.proto")
    name = "swiftlet_serve/grpc/open_inference"
    copy = tmp_path / f"{name}.proto"
    copy.parent.mkdir(parents=True)
    copy.write_text(source.read_text())
    arguments = [f"-I{tmp_path}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(copy)]

    assert protoc.main(["protoc", *arguments]) == 0
    for ending in ("_pb2.py", "_pb2.pyi"):
        assert (tmp_path / f"{name}{ending}").read_text() == source.with_name(f"open_inference{ending}").read_text()
