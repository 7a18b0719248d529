"""TLS configuration of the public port."""

from __future__ import annotations

import ssl
from pathlib import Path

from swiftlet_serve.service.errors import SetupError


def load_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Creates the TLS context of a server; None without a certificate.

    Raises:
        SetupError: the files do not hold a certificate and its private key.
    """
    if cert is None:
        if key is not None:
            raise SetupError("tls_key is set, but tls_cert is not. Set both, or neither.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 or later
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")  # without this, OpenSSL asks for one in the terminal
    except ssl.SSLError as error:
        expected = "do not hold a certificate and its private key, in PEM and without a password"
        raise SetupError(f"{cert} and {key or cert} {expected} ({error.reason or 'unreadable'}).") from None
    except OSError as error:
        raise SetupError(f"Cannot read {cert} or {key or cert}: {error.strerror}.") from None
    return context
