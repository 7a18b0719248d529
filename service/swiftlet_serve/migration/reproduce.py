"""Reproduces answers: asks a server again, and compares its receipts with those of a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from swiftlet_serve.http.endpoints.receipts import request_digest, verify
from swiftlet_serve.migration.endpoint import Endpoint
from swiftlet_serve.migration.grpc_endpoint import GrpcEndpoint
from swiftlet_serve.migration.request_log import Answered

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


async def reproduce(
    entries: Iterator[Answered], server: Endpoint | GrpcEndpoint, key: Ed25519PublicKey
) -> list[tuple[int, str | None]]:
    """Returns the line of each request, with the reason why its answer is not reproduced to the bit, or None if it is.

    Args:
        entries: the requests, with the receipts of their answers.
        server: serves the same models, and signs with the same key.
        key: the public key.

    Raises:
        SetupError: the log is invalid.
    """
    try:
        return [(entry.line, await _fault(entry, server, key)) for entry in entries]
    finally:
        server.close()


async def _fault(entry: Answered, server: Endpoint | GrpcEndpoint, key: Ed25519PublicKey) -> str | None:
    try:
        known = verify(entry.receipt, key)
    except ValueError:
        return "its receipt is not signed with this key"
    body = entry.content
    if (known.path, known.request) != (unquote(entry.path), request_digest(body)):
        return "its receipt is of another request"
    if (entry.message is None) is isinstance(server, GrpcEndpoint):
        return "it is a call of gRPC, and the server has a URL of HTTP, or the reverse"
    reply = await server.ask(entry.path, body)
    if reply.content is None:
        return f"the server does not answer it ({reply.outcome})"
    try:
        again = verify(reply.receipt, key)
    except ValueError:
        return "the server does not sign with this key"
    if (known.model, known.manifest) != (again.model, again.manifest):
        return "the server has another model"
    if known.answer != again.answer:
        return f"the answer differs (engine {known.engine} then, {again.engine} now)"
    return None
