"""The checks of a body that its headers allow before it is read, and its decompression."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from swiftlet_serve.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The codings of compressed bodies, as zlib numbers them."""


def check_headers(headers: Mapping[str, str], max_bytes: int, *, json_only: bool) -> None:
    """Checks what the headers declare about the body. The transport closes the connection after an error.

    Raises:
        UnsupportedMediaType: the body is compressed in another way than with gzip or deflate. With `json_only`: it is
            compressed, or not declared as JSON in UTF-8.
        PayloadTooLarge: the declared size exceeds `max_bytes`.
    """
    coding = _coding(headers)
    if coding != "identity" and (json_only or coding not in WINDOW_BITS):
        detail = "This route does not accept bodies with this Content-Encoding. Send the body without one."
        accepted = "identity" if json_only else "gzip, deflate, identity"
        raise UnsupportedMediaType(
            "unsupported_encoding", detail, headers={"accept-encoding": accepted, "connection": "close"}
        )
    if json_only:
        _check_media_type(headers.get("content-type", "application/json"))
    declared = headers.get("content-length", "")
    if declared.isdecimal() and float(declared) > max_bytes:  # int refuses numbers of very many digits
        raise too_large(max_bytes)


def decompress(body: bytearray | bytes, headers: Mapping[str, str], max_bytes: int) -> bytearray | bytes:
    """Returns a body that `check_headers` accepted without its compression. Never makes more than `max_bytes` of it.

    Raises:
        InvalidRequest: the body is not compressed as its headers declare.
        PayloadTooLarge: the decompressed size exceeds `max_bytes`.
    """
    coding = _coding(headers)
    if coding == "identity":
        return body
    decompressor = zlib.decompressobj(WINDOW_BITS[coding])
    try:
        whole = decompressor.decompress(body, max_bytes + 1)
    except zlib.error:
        whole = b""
    if len(whole) > max_bytes:
        raise too_large(max_bytes)
    if not decompressor.eof or decompressor.unused_data:
        detail = "The body is not compressed as its Content-Encoding declares, or is incomplete."
        raise InvalidRequest("bad_framing", detail)
    return whole


def too_large(max_bytes: int) -> PayloadTooLarge:
    """Returns the error of a body with more than `max_bytes`."""
    detail = f"The body is larger than {max_bytes} bytes. Send a smaller one, or split the request."
    return PayloadTooLarge("body_too_large", detail, headers={"connection": "close"})


def _coding(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "identity").strip().lower()


def _check_media_type(value: str) -> None:
    media_type, *parameters = value.lower().split(";")
    charsets = {name.strip().removeprefix("charset=").strip('"') for name in parameters if name.strip()}
    if media_type.strip() != "application/json" or not charsets <= {"utf-8", "utf8"}:
        detail = "The Content-Type is not supported. Send application/json in UTF-8."
        raise UnsupportedMediaType(
            "unsupported_media_type", detail, headers={"accept": "application/json", "connection": "close"}
        )
