"""The gRPC port of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import grpc
from starlette.responses import Response

from swiftlet_serve.errors import SetupError
from swiftlet_serve.grpc import health, messages, server_reflection
from swiftlet_serve.grpc.calls import Caller, render_error
from swiftlet_serve.grpc.open_inference import INFER, PAGES, SERVICE, Page, infer
from swiftlet_serve.http.endpoints.model_endpoint import ModelEndpoint, TaskResponse
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.gate import Gate, Observer
from swiftlet_serve.http.gate.request import Request, Respond, Route
from swiftlet_serve.http.gate.tls import Certificate
from swiftlet_serve.inference.runtime import Runtime

MAX_STREAMS: Final = 1000  # concurrent calls of a connection
IDLE_S: Final = 60.0  # until the server pings a silent client, whose connection ends if it does not answer

# The age at which a connection is closed without loss: the client is told, and connects again. A stopping server thus
# has no connections left after a longer `drain_s`. Calls that arrive while gRPC itself stops would be cancelled.
MAX_AGE_S: Final = 5.0


class GrpcPort:
    """Serves gRPC on one address. All methods must be called on one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        keys: ApiKeys | None,
        observers: Sequence[Observer],
        certificate: Certificate | None = None,
    ) -> None:
        """Creates a port.

        Args:
            runtime: the loaded models.
            keys: the API keys that all methods but health checks require; None requires none.
            observers: called with each finished request record, before the runtime's statistics.
            certificate: the TLS certificate of the server; None serves without TLS.
        """
        self.address = ""
        """Host and port, once the port is open."""
        self._runtime = runtime
        self._certificate = certificate
        self._caller = Caller(Gate(runtime, _routes(runtime), keys, observers))
        self._closing = asyncio.Event()

    async def open(self) -> None:
        """Serves calls on the running event loop.

        Raises:
            SetupError: the address is in use or not available.
        """
        settings = self._runtime.settings
        host, port = settings.host, settings.grpc_port
        self._server = server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", int(settings.reuse_port)),
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_send_message_length", -1),  # the endpoint limits it
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.keepalive_time_ms", int(1000 * IDLE_S)),
                ("grpc.max_connection_age_ms", int(1000 * MAX_AGE_S)),
            ]
        )
        server.add_generic_rpc_handlers(self._handlers())
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificate is None:
                bound = server.add_insecure_port(target)
            else:
                bound = server.add_secure_port(target, _credentials(self._certificate))
        except RuntimeError:
            raise SetupError(f"Cannot listen on {host}, port {port}: the address is in use or not available.") from None
        self.address = f"{target.rpartition(':')[0]}:{bound}"
        await server.start()

    async def close(self) -> None:
        """Stops accepting calls. Returns when every accepted call is answered."""
        self._closing.set()
        await self._server.stop(self._runtime.settings.shutdown_timeout_s)

    async def abort(self) -> None:
        """Cancels the calls in progress."""
        await self._server.stop(None)

    def _handlers(self) -> list[grpc.GenericRpcHandler]:
        return [
            grpc.method_handlers_generic_handler(SERVICE, {name: self._method(name) for name in (INFER, *PAGES)}),
            health.handler(self._runtime, self._closing),
            server_reflection.handler((SERVICE, health.HEALTH), self._caller, self._closing),
        ]

    def _method(self, name: str) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(partial(self._caller.run, f"/{SERVICE}/{name}"))


def _routes(runtime: Runtime) -> Iterator[Route]:
    """Returns the methods as routes, and one for server reflection, which only needs its API key checked."""
    endpoint = ModelEndpoint(runtime, infer(runtime))
    yield Route(
        "POST", f"/{SERVICE}/{INFER}", endpoint.respond, runs_model=True, reads_body=True, render_error=render_error
    )
    for name, page in PAGES.items():
        respond = _respond(runtime, page)
        yield Route("POST", f"/{SERVICE}/{name}", respond, public=page.public, render_error=render_error)
    yield Route("POST", server_reflection.PATH, _reflect, render_error=render_error)


def _respond(runtime: Runtime, page: Page) -> Respond:
    async def respond(request: Request) -> Response:
        answer = page.respond(runtime, messages.parse(page.request, request.body))
        return TaskResponse(answer.SerializeToString())

    return respond


async def _reflect(_: Request) -> Response:
    return Response()


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Returns credentials that every new connection takes from the certificate."""

    def current() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([certificate.pem])

    return grpc.dynamic_ssl_server_credentials(current(), current)
