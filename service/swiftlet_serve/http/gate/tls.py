"""TLS configuration of the public port."""

from __future__ import annotations

import ssl
from pathlib import Path

from swiftlet_models.regular_file import check_regular
from swiftlet_serve.errors import SetupError


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
        for file in filter(None, (cert, key)):
            check_regular(file)
        context.load_cert_chain(cert, key, password=lambda: b"")  # without this, OpenSSL asks for one in the terminal
    except ssl.SSLError as error:
        expected = "do not hold a certificate and its private key, in PEM and without a password"
        raise SetupError(f"{cert} and {key or cert} {expected} ({error.reason or 'unreadable'}).") from None
    except OSError as error:
        files = " or ".join(str(file) for file in (cert, key) if file)
        raise SetupError(f"Cannot read {files}: {error.strerror}.") from None
    return context


class Certificate:
    """The certificate of a server, which new connections use."""

    def __init__(self, cert: Path, key: Path | None) -> None:
        """Reads a certificate and its private key, from `cert` if `key` is None.

        Raises:
            SetupError: as `load_context`.
        """
        self._files = cert, key
        context = load_context(cert, key)
        assert context is not None  # noqa: S101  # for the type checker
        self.context = context
        self.pem = (key or cert).read_bytes(), cert.read_bytes()
        """The private key and the chain of certificates."""

    def reload(self) -> None:
        """Reloads the files.

        Raises:
            SetupError: the files are invalid. The certificate stays as it is.
        """
        new = Certificate(*self._files)
        self.context.load_cert_chain(*self._files)
        self.pem = new.pem
