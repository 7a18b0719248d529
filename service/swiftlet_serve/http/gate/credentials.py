"""The API keys and the certificate of a server, which it reads from files, and again on request."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.gate import tls
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.settings import Settings
from swiftlet_serve.workers.signature import signing_key

log = logging.getLogger(__name__)


class Credentials:
    """The API keys and the TLS certificate of the settings. Either may be missing."""

    def __init__(
        self,
        keys_file: Path | None,
        keys: ApiKeys | None,
        certificate: tls.Certificate | None,
        admin_keys_file: Path | None = None,
        admin_keys: ApiKeys | None = None,
    ) -> None:
        self.keys = keys
        self.admin_keys = admin_keys
        self.certificate = certificate
        self._key_files = [
            (title, path, held)
            for title, path, held in (("API keys", keys_file, keys), ("admin keys", admin_keys_file, admin_keys))
            if path is not None and held is not None
        ]

    @classmethod
    def read(cls, settings: Settings) -> Credentials:
        """Reads the files of the settings.

        Raises:
            SetupError: a file is invalid, or there is a private key without a certificate.
        """
        certificate = None
        if settings.tls_cert is None:
            tls.load_context(None, settings.tls_key)
        else:
            certificate = tls.Certificate(settings.tls_cert, settings.tls_key)
        if settings.receipt_key is not None:  # the endpoints read it, which is after the models are loaded
            signing_key(settings.receipt_key)
        keys = None if settings.api_keys_file is None else ApiKeys.read(settings.api_keys_file)
        admin_keys = None if settings.admin_keys_file is None else ApiKeys.read(settings.admin_keys_file)
        return cls(settings.api_keys_file, keys, certificate, settings.admin_keys_file, admin_keys)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS configuration with the certificate, if there is one."""
        return None if self.certificate is None else self.certificate.context

    def reload(self) -> None:
        """Reloads the files. An invalid file has no effect."""
        for title, path, held in self._key_files:
            try:
                held.replace(ApiKeys.read(path))
                log.info("The %s were reloaded.", title)
            except SetupError as error:
                log.warning("The %s stay as they were. %s", title, error)
        if self.certificate is not None:
            try:
                self.certificate.reload()
                log.info("The certificate was reloaded. New connections use it.")
            except SetupError as error:
                log.warning("The certificate stays as it was. %s", error)
