"""A gRPC port in this process, and a client of it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.grpc.open_inference import SERVICE
from swiftlet_serve.grpc.port import GrpcPort
from swiftlet_serve.http.dialect_parts.tensors import DTYPES
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.gate import Observer
from swiftlet_serve.http.gate.tls import Certificate
from swiftlet_serve.inference.local_runtime import LocalRuntime
from tests.support.apps import SECRET
from tests.support.fakes import PATIENCE_S

FAULTS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""The statuses of a client's fault."""


class Client:
    """A client with a connection of its own."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        alone = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = (
            grpc.aio.insecure_channel(address, alone)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, alone)
        )

    def call(self, method: str, request: Any, *, timeout: float = PATIENCE_S, **metadata: str) -> Any:
        """Starts a call of the Open Inference Protocol. `request` is a message or bytes."""
        answer = getattr(pb, f"{method}Response")
        start = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        headers = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        return start(request, timeout=timeout, metadata=headers)

    async def fail(self, method: str, request: Any, **options: Any) -> grpc.aio.AioRpcError:
        """Returns the error of a call."""
        try:
            await self.call(method, request, **options)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the call succeeded")


@asynccontextmanager
async def serving(
    runtime: LocalRuntime, keys: ApiKeys | None = None, observers: Sequence[Observer] = ()
) -> AsyncIterator[tuple[GrpcPort, Client]]:
    """Opens the runtime and a gRPC port with a client. The settings must have a gRPC port."""
    await runtime.open()
    settings = runtime.settings
    certificate = None if settings.tls_cert is None else Certificate(settings.tls_cert, settings.tls_key)
    port = GrpcPort(runtime, keys, observers, certificate)
    await port.open()
    client = Client(port.address)
    try:
        yield port, client
    finally:
        await client.channel.close()
        await port.abort()
        await runtime.close()


def request(
    model: str, texts: Mapping[str, Sequence[str]], *, packed: bool = False, **fields: Any
) -> pb.ModelInferRequest:
    """Returns a request with an input for each list of texts, and the given parameters."""
    parameters = fields.pop("parameters", {})
    message = pb.ModelInferRequest(model_name=model, **fields)
    for name, values in texts.items():
        one = message.inputs.add(name=name, datatype="BYTES", shape=[len(values)])
        encoded = [value.encode() for value in values]
        if packed:
            message.raw_input_contents.append(b"".join(len(each).to_bytes(4, "little") + each for each in encoded))
        else:
            one.contents.bytes_contents.extend(encoded)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return message


def columns(response: pb.ModelInferResponse) -> dict[str, Any]:
    """Returns the outputs by name, as lists of the shape that the response declares."""
    assert len(response.outputs) == len(response.raw_output_contents)
    found = {}
    for one, packed in zip(response.outputs, response.raw_output_contents, strict=True):
        values = _texts(packed) if one.datatype == "BYTES" else np.frombuffer(packed, DTYPES[one.datatype]).tolist()
        found[one.name] = np.array(values, object).reshape(one.shape).tolist()
    return found


def _texts(packed: bytes) -> list[str]:
    texts = []
    while packed:
        size = int.from_bytes(packed[:4], "little")
        texts.append(packed[4 : 4 + size].decode())
        packed = packed[4 + size :]
    return texts


def valid_request(*, packed: bool = False) -> pb.ModelInferRequest:
    """Returns a request with SECRET in every string."""
    texts = {"text": [SECRET, f"{SECRET} 서울 🎬"]}
    return request("classify", texts, packed=packed, id=SECRET, parameters={"top_k": 2})


def damaged_sources() -> list[bytes]:
    """Returns the messages to damage."""
    return [valid_request().SerializeToString(), valid_request(packed=True).SerializeToString()]


def damage(data: bytes, pick: random.Random) -> bytes:
    """Returns a message with a few bytes replaced, removed, doubled or cut off."""
    damaged = bytearray(data)
    for _ in range(pick.randint(1, 4)):
        at = pick.randrange(len(damaged) or 1)
        match pick.randrange(4):
            case 0:
                damaged[at : at + 1] = bytes([pick.choice((0, 1, 2, 0x7F, 0x80, 0xFF, pick.randrange(256)))])
            case 1:
                del damaged[at : at + pick.randint(1, 4)]
            case 2:
                damaged[at:at] = damaged[at : at + pick.randint(1, 9)]
            case _:
                del damaged[at:]
    return bytes(damaged)
