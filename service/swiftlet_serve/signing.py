"""Ed25519 keys in PEM, which sign certificates and receipts. They need the extra `sign`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swiftlet_serve import extras
from swiftlet_serve.errors import SetupError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

NEW_KEY: Final = "Make one with openssl genpkey -algorithm ed25519 -out key.pem, and its public key with openssl pkey."


def signing_key(file: Path) -> Ed25519PrivateKey:
    """Reads a private key in PEM.

    Raises:
        SetupError: the file is not readable or no Ed25519 key, or the package cryptography is not installed.
    """
    extras.require("sign")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _load(file, lambda content: load_pem_private_key(content, None))
    if not isinstance(key, Ed25519PrivateKey):
        raise SetupError(f"{file} is not a private Ed25519 key. {NEW_KEY}")
    return key


def public_key(file: Path) -> Ed25519PublicKey:
    """Reads a public key in PEM.

    Raises:
        SetupError: as `signing_key`.
    """
    extras.require("sign")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _load(file, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise SetupError(f"{file} is not a public Ed25519 key. {NEW_KEY}")
    return key


def _load(key: Path, load: Callable[[bytes], object]) -> object:
    try:
        return load(key.read_bytes())
    except TypeError:
        raise SetupError(f"{key} is encrypted. Decrypt it with openssl pkey -in {key} -out plain.pem.") from None
    except Exception as error:  # of the file, or of any kind from the library
        reason = error.strerror if isinstance(error, OSError) else "it is no key in PEM"
        raise SetupError(f"The key {key} cannot be read: {reason}. {NEW_KEY}") from None
