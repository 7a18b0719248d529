"""Health checks over gRPC. They need no API key and are not counted.

Specification: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2 as pb

from swiftlet_serve.grpc.calls import Context
from swiftlet_serve.grpc.open_inference import SERVICE, is_ready
from swiftlet_serve.inference.runtime import Runtime

HEALTH: Final = str(pb.DESCRIPTOR.services_by_name["Health"].full_name)
NAMES: Final = frozenset({"", SERVICE})
"""The services whose health is known. The empty name is the server."""
POLL_S: Final = 0.25  # between two looks at the server, for a client that watches it


def handler(runtime: Runtime, closing: asyncio.Event) -> grpc.GenericRpcHandler:
    """Returns the handler of the health service. Watches end when the port is closing."""

    def status(request: Any) -> Any:
        if request.service not in NAMES:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        return pb.HealthCheckResponse.SERVING if is_ready(runtime) else pb.HealthCheckResponse.NOT_SERVING

    async def check(request: Any, context: Context) -> Message:
        serving_status = status(request)
        if serving_status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "No service has this name.")
        response: Message = pb.HealthCheckResponse(status=serving_status)
        return response

    async def watch(request: Any, _: Context) -> AsyncIterator[Message]:
        last = None
        while not closing.is_set():
            if (serving_status := status(request)) != last:
                yield pb.HealthCheckResponse(status=serving_status)
            last = serving_status
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), POLL_S)

    forms = {
        "request_deserializer": pb.HealthCheckRequest.FromString,
        "response_serializer": pb.HealthCheckResponse.SerializeToString,
    }
    return grpc.method_handlers_generic_handler(
        HEALTH,
        {
            "Check": grpc.unary_unary_rpc_method_handler(check, **forms),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, **forms),
        },
    )
