"""Reflection over gRPC: describes the services, for tools such as grpcurl. Needs an API key if calls need one.

Specification: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import grpc
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha import reflection_pb2 as pb

from swiftlet_serve.grpc.calls import Caller, Context

REFLECTION: Final = str(reflection.SERVICE_NAME)
METHOD: Final = "ServerReflectionInfo"
PATH: Final = f"/{REFLECTION}/{METHOD}"


def handler(services: Sequence[str], caller: Caller, closing: asyncio.Event) -> grpc.GenericRpcHandler:
    """Returns the handler of the reflection service.

    Args:
        services: the names of the services to describe.
        caller: checks the API key.
        closing: ends the streams of clients that do not end them.
    """
    servicer = reflection.aio.ReflectionServicer((*services, REFLECTION))

    async def reflect(requests: AsyncIterator[Message], context: Context) -> AsyncIterator[Message]:
        await caller.run(PATH, b"", context)
        async for response in servicer.ServerReflectionInfo(_until(closing, requests), context):
            yield response

    method = grpc.stream_stream_rpc_method_handler(
        reflect,
        request_deserializer=pb.ServerReflectionRequest.FromString,
        response_serializer=pb.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(REFLECTION, {METHOD: method})


async def _until(closing: asyncio.Event, requests: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """Yields the requests of a client until it sends no more, or the port is closing."""
    closed = asyncio.ensure_future(closing.wait())
    try:
        while True:
            received = asyncio.ensure_future(anext(requests, None))
            await asyncio.wait({received, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not received.done():
                received.cancel()
                return
            if (request := received.result()) is None:
                return
            yield request
    finally:
        closed.cancel()
