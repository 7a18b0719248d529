"""The keys that sign certificates of artifacts, and the check of a signature, wherever an artifact is opened.

`certificate.sig` is the Ed25519 signature of the bytes of `certificate.json`, as `openssl pkeyutl -rawin` makes and
verifies it. The certificate holds the hash of the manifest, and the manifest those of all other files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swiftlet_models.artifact import CERTIFICATE, SIGNATURE, Artifact, ArtifactError, open_artifact
from swiftlet_models.regular_file import check_regular
from swiftlet_serve import extras
from swiftlet_serve.errors import SetupError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

NEW_KEY: Final = "Make one with openssl genpkey -algorithm ed25519 -out key.pem, and its public key with openssl pkey."


@cache
def signing_key(file: Path) -> Ed25519PrivateKey:
    """Reads a private key in PEM, once in a process: every endpoint of a server signs with it.

    Raises:
        SetupError: the file is not readable or no Ed25519 key, or the package cryptography is not installed.
    """
    extras.require("sign")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _load(file, lambda content: load_pem_private_key(content, None), "private")
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

    key = _load(file, load_pem_public_key, "public")
    if not isinstance(key, Ed25519PublicKey):
        raise SetupError(f"{file} is not a public Ed25519 key. {NEW_KEY}")
    return key


def open_signed(path: Path, key: Path | None) -> Artifact:
    """Opens an artifact as `open_artifact` does. With a public key, its owner must have signed the certificate.

    Raises:
        ArtifactError: as `open_artifact` and `check_signature`.
        SetupError: as `public_key`.
    """
    if key is None:
        return open_artifact(path)
    certificate = check_signature(path, key)
    artifact = open_artifact(path)
    if json.loads(certificate)["manifest"] != artifact.digest:
        raise ArtifactError(f"{path.name} was replaced while it was opened. Open it again.")
    return artifact


def check_signature(path: Path, key: Path) -> bytes:
    """Checks that the owner of a public key, in PEM, signed the certificate of the artifact in `path`, and returns it.

    Raises:
        ArtifactError: the artifact has no signature, or one of another key or another certificate.
        SetupError: as `public_key`.
    """
    public = public_key(key)
    from cryptography.exceptions import InvalidSignature

    signature, certificate = path / SIGNATURE, path / CERTIFICATE
    if not (signature.is_file() and certificate.is_file()):
        raise ArtifactError(f"{path.name} is not signed. Sign it with swiftlet certify {path} --sign-key KEY.")
    try:
        public.verify(signature.read_bytes(), content := certificate.read_bytes())
    except InvalidSignature:
        raise ArtifactError(
            f"{path.name}: the owner of {key} did not sign this certificate. Fetch the artifact again from its source, "
            "or name the key of its signer."
        ) from None
    return content


def _load(key: Path, load: Callable[[bytes], object], kind: str) -> object:
    try:
        check_regular(key)
        return load(key.read_bytes())
    except TypeError:
        raise SetupError(f"{key} is encrypted. Decrypt it with openssl pkey -in {key} -out plain.pem.") from None
    except Exception as error:  # of the file, or of any kind from the library
        reason = error.strerror if isinstance(error, OSError) else f"it is no {kind} key in PEM"
        raise SetupError(f"The key {key} cannot be read: {reason}. {NEW_KEY}") from None
