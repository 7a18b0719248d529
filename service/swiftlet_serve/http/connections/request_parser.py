"""Incremental parsing of HTTP/1.1 requests with httptools.

httptools rejects every malformed framing of our tests, where h11 accepts some of them. It also parses a body of
thousands of chunks without blocking the event loop. This module adds what httptools leaves to its caller: size limits,
the checks of the request's line and headers, and a cut of the input before the start of the next request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import httptools

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


END: Final = b"\r\n\r\n"
"""The end of every head and of every chunked body."""
PIECE_BYTES: Final = 256  # of a chunked body, within which the parser does not tell framing from content


class RequestParser:
    """Parses one request after another. The attributes describe what has arrived of the current one.

    The methods `on_…` are the callbacks of httptools.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.method = b""
        self.target = b""
        self.version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.keep_alive = True
        self.expects_continue = False
        self.has_head = False  # whether the head has arrived
        self.is_complete = False  # whether the whole request has arrived
        self.head_bytes = 0  # received of the current head
        self._limits = limits
        self._parser = self._create_parser()
        self._content: list[bytes] = []  # of the body, since the last call of `take_body`
        self._tail = b""  # the last bytes of a head or of a chunked body: its end may arrive in two pieces
        self._body_bytes: int | None = None  # left to receive; None: the body is chunked
        self._following_bytes = 0  # received together with the end of the head
        self._framing_bytes = 0  # an upper bound for a chunked body, since its last byte of content
        self._content_bytes = 0  # of the current piece of a chunked body

    @property
    def has_whole_body(self) -> bool:
        """Whether the body arrived together with the end of the head."""
        return self._body_bytes is not None and self._body_bytes <= self._following_bytes

    def start(self) -> None:
        """Prepares for the next request."""
        self.target, self.headers, self.expects_continue = b"", [], False
        self.has_head = self.is_complete = False
        self.head_bytes, self._tail = 0, b""

    def take_body(self) -> bytes:
        """Returns the content of the body that has arrived since the last call."""
        content, self._content = self._content, []
        return b"".join(content)

    def close(self) -> None:
        """Breaks the reference cycle with httptools, which spares the garbage collector the work."""
        self._parser = None  # no method is called after this one

    def feed_head(self, data: bytes, start: int) -> int:
        """Parses a head, or the part of it that `data[start:]` holds. Returns the end of the part.

        Raises:
            SwiftletError: the head is invalid or exceeds a limit.
            httptools.HttpParserError: the head is not HTTP/1.1.
        """
        end = self._find_end(data, start)
        end = min(end, start + self._limits.head_bytes - self.head_bytes)
        part = data[start:end]
        self._following_bytes = len(data) - end
        with suppress(httptools.HttpParserUpgrade):  # the server ignores the offer and answers the request
            self._parser.feed_data(part)
        if self.has_head:
            self._complete_head()
        else:
            self.head_bytes += len(part)
            self._tail = (self._tail + part[-3:])[-3:]
            if self.head_bytes >= self._limits.head_bytes:
                if len(self.target) > self._limits.target_bytes:
                    raise target_too_long(self._limits)
                detail = (
                    f"The request headers are larger than {self._limits.head_bytes} bytes. Send fewer or shorter ones."
                )
                raise HeadersTooLarge("headers_too_large", detail)
        return end

    def feed_body(self, data: bytes, start: int) -> int:
        """Parses a body, or the part of it that `data[start:]` holds. Returns the end of the part.

        Raises:
            HeadersTooLarge: the chunk extensions or trailers are larger than a head may be.
            httptools.HttpParserError: the body is malformed.
        """
        if self._body_bytes is None:
            return self._feed_chunks(data, start)
        end = min(len(data), start + self._body_bytes)
        self._body_bytes -= end - start
        self._parser.feed_data(data[start:end])
        return end

    def _feed_chunks(self, data: bytes, start: int) -> int:
        end = self._find_end(data, start)
        self._tail = (self._tail + data[max(start, end - 3) : end])[-3:]
        while start < end:
            size = min(PIECE_BYTES, end - start, self._limits.head_bytes - self._framing_bytes)
            if size == 0:
                detail = f"The chunk extensions or trailers are larger than {self._limits.head_bytes} bytes. Omit them."
                raise HeadersTooLarge("headers_too_large", detail)
            self._content_bytes = 0
            self._parser.feed_data(data[start : start + size])
            self._framing_bytes = size - self._content_bytes + (0 if self._content_bytes else self._framing_bytes)
            start += size
        return end

    def _complete_head(self) -> None:
        self._body_bytes = check_head(self.method, self.target, self.version, self.headers, self._limits)
        if self._body_bytes != 0 and self._parser.should_upgrade():
            self._parse_without_upgrade()
        self._tail, self._framing_bytes = b"", 0

    def _create_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # answers the first of pipelined requests
        return parser

    def _find_end(self, data: bytes, start: int) -> int:
        """Returns where a head or a chunked body may end; the length of `data` if it does not."""
        if self._tail:
            straddling = (self._tail + data[start : start + 3]).find(END)
            if straddling >= 0:
                return start + straddling + len(END) - len(self._tail)
        end = data.find(END, start)
        return end + len(END) if end >= 0 else len(data)

    def _parse_without_upgrade(self) -> None:
        """Parses the head again, without its Upgrade header.

        httptools takes the bytes after an upgrade offer for another protocol, and would read the body as the next
        request. Java's HTTP client offers an upgrade (h2c) with every POST.
        """
        first = b"%b %b HTTP/%b" % (self.method, self.target, self.version.encode())
        lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self._parser = self._create_parser()
        self.start()
        self._parser.feed_data(b"\r\n".join([first, *lines]) + END)

    # Callbacks of httptools

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.has_head:  # trailers are ignored
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expects_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.method, self.version = self._parser.get_method(), self._parser.get_http_version()
        self.keep_alive = self.version != "1.0" and self._parser.should_keep_alive()
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        self._content_bytes += len(data)
        self._content.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True
