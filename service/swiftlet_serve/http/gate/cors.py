"""Requests of web pages from other origins (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from starlette.responses import PlainTextResponse, Response

METHODS: Final = ("GET", "POST")
SAFE_HEADERS: Final = ("Accept", "Accept-Language", "Content-Language", "Content-Type")  # always allowed
MAX_AGE_S: Final = 600  # that browsers keep the answer to a preflight request


class Cors:
    """The origins whose pages may use the server."""

    def __init__(self, origins: Collection[str], allowed: Collection[str], exposed: Collection[str]) -> None:
        """Creates the rules.

        Args:
            origins: the origins, such as https://page.example; * for all.
            allowed: the headers that pages may send.
            exposed: the headers of responses that pages may read.
        """
        self._origins = origins
        names = sorted({*SAFE_HEADERS, *allowed})
        self._allowed = ", ".join(names)
        self._lower_case = {name.lower() for name in names} | {""}
        self._exposed = ", ".join(exposed).encode()

    def preflight(self, method: str, headers: Mapping[str, str]) -> Response | None:
        """Returns the response to a request that asks for permission; None for any other request."""
        wanted = headers.get("access-control-request-method")
        if method != "OPTIONS" or wanted is None or "origin" not in headers:
            return None
        names = headers.get("access-control-request-headers", "").lower().split(",")
        refused = {
            "origin": not self._origin(headers),
            "method": wanted not in METHODS,
            "headers": not {name.strip() for name in names} <= self._lower_case,
        }
        if any(refused.values()):
            faults = ", ".join(name for name, is_refused in refused.items() if is_refused)
            response = PlainTextResponse(f"Disallowed CORS {faults}", 400)
        else:
            response = PlainTextResponse("OK")
        response.headers.update(
            {
                "access-control-allow-methods": ", ".join(METHODS),
                "access-control-allow-headers": self._allowed,
                "access-control-max-age": str(MAX_AGE_S),
            }
        )
        self.add_headers(headers, response.raw_headers)
        return response

    def add_headers(self, headers: Mapping[str, str], response_headers: list[tuple[bytes, bytes]]) -> None:
        """Adds the headers that let a page read a response in a browser. `headers` are the request's."""
        if origin := self._origin(headers):
            response_headers.append((b"access-control-allow-origin", origin.encode("latin-1")))
            response_headers.append((b"access-control-expose-headers", self._exposed))
        if "*" not in self._origins:
            response_headers.append((b"vary", b"Origin"))

    def _origin(self, headers: Mapping[str, str]) -> str:
        """Returns the value of Access-Control-Allow-Origin; empty without permission."""
        origin = headers.get("origin", "")
        if origin and "*" in self._origins:
            return "*"
        return origin if origin in self._origins else ""
