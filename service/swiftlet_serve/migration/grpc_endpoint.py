"""A server of gRPC that is asked again: an address and its key."""

from __future__ import annotations

from typing import Any, Final

from swiftlet_serve import extras
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.endpoints.receipts import HEADER
from swiftlet_serve.migration.endpoint import MAX_RESPONSE_BYTES, Reply, check_key

OPTIONS: Final = [("grpc.max_receive_message_length", MAX_RESPONSE_BYTES)]


class GrpcEndpoint:
    """Sends each call once and unchanged, over a new connection."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        """Opens no connection yet.

        Args:
            url: the address as grpc://host:port, or grpcs:// with TLS.
            key: the API key, or nothing.
            timeout_s: the longest time for a response.

        Raises:
            SetupError: the address or the key is invalid, or gRPC is not installed.
        """
        try:
            import grpc
        except ModuleNotFoundError as error:
            raise SetupError(f"gRPC needs the package {error.name!r}. Run: {extras.installation('grpc')}") from None
        scheme, _, self._target = url.partition("://")
        host, _, port = self._target.rpartition(":")
        if not host or not port.isdecimal() or set(self._target) & set("/@?# ,"):
            raise SetupError("An address of gRPC is grpc://host:port, or grpcs://host:port with TLS.")
        check_key(key)
        self._grpc: Any = grpc
        self._credentials = grpc.ssl_channel_credentials() if scheme == "grpcs" else None
        self._metadata = [("authorization", f"Bearer {key}")] if key else []
        self._timeout_s = timeout_s

    async def ask(self, path: str, message: bytes) -> Reply:
        """Makes a call. An error is a reply, too. Its content is the message of the response."""
        aio = self._grpc.aio
        if self._credentials is None:
            channel = aio.insecure_channel(self._target, OPTIONS)
        else:
            channel = aio.secure_channel(self._target, self._credentials, OPTIONS)
        async with channel:
            call = channel.unary_unary(path)(message, timeout=self._timeout_s, metadata=self._metadata)
            try:
                content = await call
            except aio.AioRpcError as error:
                return Reply(error.code().name)
            metadata = dict(await call.trailing_metadata() or ())
        return Reply("OK", 0.0, content, metadata.get(HEADER.lower(), ""))

    def close(self) -> None:
        """Has no effect: no connection is kept."""
