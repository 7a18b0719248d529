"""Validation of a request's line and headers, beyond the checks of the parser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from swiftlet_serve.errors import HeadersTooLarge, InvalidRequest, MethodNotAllowed, UriTooLong
from swiftlet_serve.http.connections.limits import ConnectionLimits

HOST: Final = re.compile(rb"[A-Za-z0-9._~%\[\]:-]*")

Headers = Sequence[tuple[bytes, bytes]]


def check_head(method: bytes, target: bytes, version: str, headers: Headers, limits: ConnectionLimits) -> int | None:
    """Validates a request's line and headers, and returns the length of its body in bytes; None if it is chunked.

    The names of `headers` are in lower case.

    Raises:
        UriTooLong, HeadersTooLarge: the request exceeds `limits`.
        InvalidRequest: the version, the Host, the target or the transfer coding is invalid.
        MethodNotAllowed: the method is CONNECT.
    """
    fields = dict(headers)
    has_repeated = len(fields) < len(headers)
    if len(target) > limits.target_bytes:
        raise target_too_long(limits)
    if len(headers) > limits.headers:
        detail = f"The request has more than {limits.headers} headers. Send fewer."
        raise HeadersTooLarge("headers_too_large", detail)
    if version not in ("1.1", "1.0"):
        raise InvalidRequest("bad_framing", "The HTTP version is not supported. Use HTTP/1.1 or HTTP/1.0.")
    host = fields.get(b"host", None if version == "1.1" else b"")
    if host is None or not HOST.fullmatch(host) or (has_repeated and _count(headers, b"host") > 1):
        detail = "The Host header is missing, invalid or repeated. Send exactly one valid Host."
        raise InvalidRequest("bad_framing", detail)
    if not target.startswith(b"/"):
        _check_target_form(method, target, host)
    coding = fields.get(b"transfer-encoding")
    if coding is None:
        return int(fields.get(b"content-length", 0))  # the parser accepts one valid number only
    if coding.lower() == b"chunked" and version == "1.1" and _count(headers, b"transfer-encoding") == 1:
        return None
    detail = "The transfer coding is not supported. Use chunked with HTTP/1.1, or send a Content-Length."
    raise InvalidRequest("bad_framing", detail)


def target_too_long(limits: ConnectionLimits) -> UriTooLong:
    """Returns the error of a request target that exceeds `limits`."""
    return UriTooLong("uri_too_long", f"The URL is longer than {limits.target_bytes} bytes. Shorten it.")


def _count(headers: Headers, name: bytes) -> int:
    return sum(header[0] == name for header in headers)


def _check_target_form(method: bytes, target: bytes, host: bytes) -> None:
    """Validates a target that is not a path. Clients send absolute URLs to proxies."""
    if method == b"CONNECT":
        detail = "The server does not support CONNECT. Use GET or POST."
        raise MethodNotAllowed("method_not_allowed", detail, headers={"allow": "GET, POST"})
    scheme, _, rest = target.partition(b"://")
    is_absolute = scheme.lower() in (b"http", b"https") and rest.partition(b"/")[0].lower() == host.lower()
    if target != b"*" and not is_absolute:
        detail = "The request target is neither a path nor a URL of the request's Host. Send a path."
        raise InvalidRequest("bad_framing", detail)
