"""Receipts: signed digests of a request, the model and the answer, in a header of the response.

A receipt is a JSON Web Signature in its compact form (RFC 7515) with Ed25519 (RFC 8037), which any library verifies.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import json_text
from swiftlet_serve.workers.signature import signing_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HEADER: Final = "X-Receipt"


class Receipt(NamedTuple):
    """What a receipt says. The digests are SHA-256 in hexadecimal digits."""

    path: str  # of the request
    request: str  # digest of its body, as `request_digest` computes it
    model: str  # of a batch: the names of all models, with commas
    manifest: str  # digest of the model's manifest, which has those of its files. Of several models: of these digests
    engine: str
    answer: str  # digest of the model's answer as JSON, before it takes the form of a protocol. Of a batch: of the list
    response: str  # digest of the body of the response


RECEIPT: Final = TypeAdapter(Receipt)


class Signer:
    """Writes receipts."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def create(cls, settings: Settings) -> Signer | None:
        """Returns the signer of a server, or None if its settings name no key.

        Raises:
            SetupError: the key cannot be read.
        """
        return cls(signing_key(settings.receipt_key)) if settings.receipt_key else None

    def header(
        self, request: Request, pipelines: Sequence[Pipeline], answer: Any, response: bytes
    ) -> tuple[bytes, bytes]:
        """Returns the header with the receipt of an answer, which one pipeline or those of a batch gave."""
        models = {pipeline.model.artifact.digest: pipeline.model for pipeline in pipelines}
        digests = list(models)
        receipt = Receipt(
            path=request.head.path,
            request=request_digest(request.body),
            model=",".join(model.manifest.name for model in models.values()),
            manifest=digests[0] if len(digests) == 1 else _digest("\n".join(digests).encode()),
            engine=",".join(dict.fromkeys(model.engine_name for model in models.values())),
            answer=_digest(json_text.write(answer)),
            response=_digest(response),
        )
        content = _encode({"alg": "EdDSA"}) + b"." + _encode(receipt._asdict())
        return HEADER.lower().encode(), content + b"." + _base64(self._key.sign(content))


def request_digest(body: bytes | bytearray) -> str:
    """Returns the digest of a body. Of JSON, spaces and the order of names do not matter, so that a log can hold it."""
    try:
        content = json.dumps(from_json(body), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        content = bytes(body)
    return _digest(content)


def verify(receipt: str, key: Ed25519PublicKey) -> Receipt:
    """Returns what a receipt says.

    Raises:
        ValueError: the owner of the key did not sign it.
    """
    from cryptography.exceptions import InvalidSignature

    content, _, signature = receipt.encode().rpartition(b".")
    head, _, payload = content.partition(b".")
    try:
        key.verify(_decode(signature), content)
        if from_json(_decode(head)) == {"alg": "EdDSA"}:
            return RECEIPT.validate_json(_decode(payload))
    except (InvalidSignature, ValidationError, ValueError):
        pass
    raise ValueError("the receipt is not signed with this key.")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _encode(content: dict[str, str]) -> bytes:
    return _base64(json.dumps(content, separators=(",", ":")).encode())


def _base64(content: bytes) -> bytes:
    return urlsafe_b64encode(content).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    return urlsafe_b64decode(text + b"=" * (-len(text) % 4))
