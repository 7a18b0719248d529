"""The playground: the web page at /, made of the HTML, CSS and JavaScript files in this directory.

The page needs no API key, as it holds nothing secret. Its requests to the server do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    "require-trusted-types-for": "'script'",  # without trusted types, scripts cannot turn text into HTML
    "trusted-types": "'none'",
}
HEADERS: Final = {
    "cache-control": "no-cache",  # browsers keep the file, and ask before each use whether it has changed
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class File:
    """A file of the page."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> File:
        body = path.read_bytes()
        return cls(body, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def respond(self, if_none_match: str) -> Response:
        """Returns the file, or status 304 if the client has its current version, as its header If-None-Match tells."""
        headers = HEADERS | {"etag": self.etag}
        if _matches(if_none_match, self.etag):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type=self.media_type)


def _matches(condition: str, etag: str) -> bool:
    """Returns whether an If-None-Match header has a tag, by RFC 9110's weak comparison. Our tags have no comma."""
    known = {tag.strip().removeprefix("W/") for tag in condition.split(",")}
    return etag in known or "*" in known


FILES: Final = {
    "/" if path.name == INDEX else f"/page/{path.name}": File.read(path)
    for path in sorted(DIRECTORY.iterdir())
    if path.suffix in MEDIA_TYPES
}
"""The files by their paths."""
