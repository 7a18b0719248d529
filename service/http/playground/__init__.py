"""The page at /: the HTML, CSS and JavaScript of this directory, as they are. They are read once.

Nothing of it is secret, so it needs no API key; what it asks the server for does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

DIRECTORY: Final = Path(__file__).parent
INDEX: Final = "index.html"
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = {
    "default-src": "'none'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",  # with no type there is no way from a text to HTML
    "trusted-types": "'none'",
}
HEADERS: Final = {
    "cache-control": "no-cache",  # kept, and used again only once the server has said that it is the same
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True)
class File:
    """One of those the page is made of."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> File:
        body = path.read_bytes()
        return cls(body, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def answer(self, request: Request) -> Response:
        """The file, or 304 to whoever has it."""
        headers = HEADERS | {"etag": self.etag}
        if _names(request.headers.get("if-none-match", ""), self.etag):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def _names(condition: str, etag: str) -> bool:
    """Whether an If-None-Match has this tag, compared weakly as RFC 9110 says; our tags hold no comma."""
    known = {each.strip().removeprefix("W/") for each in condition.split(",")}
    return etag in known or "*" in known


FILES: Final = {
    "/" if path.name == INDEX else f"/page/{path.name}": File.read(path)
    for path in sorted(DIRECTORY.iterdir())
    if path.suffix in MEDIA_TYPES
}
"""By their addresses."""
