"""A client of an application in this process, for tests that send many requests."""

from __future__ import annotations

import json as jsons
import re
from typing import Any, Final

import anyio
import httpx2
from starlette.testclient import TestClient
from starlette.types import Message

PLAIN: Final = re.compile(r"/[\w./:@~-]*(\?[\w.=&-]*)?", re.ASCII)
"""A path that needs no encoding, with a query."""


class AppClient(TestClient):
    """As `TestClient`, in a quarter of the time: the event loop gets a request as one call, instead of eight.

    It does so for requests with a plain path and a body in memory. Their responses do not know their request.
    """

    def request(self, method: str, url: Any, **named: Any) -> httpx2.Response:
        content, json, headers = named.pop("content", None), named.pop("json", None), named.pop("headers", None)
        others = named.keys() & {"data", "files", "params", "cookies", "extensions"}
        is_plain = isinstance(url, str) and PLAIN.fullmatch(url) and not any(named[name] for name in others)
        if not is_plain or not isinstance(content, str | bytes | None) or self.portal is None:
            return super().request(method, url, content=content, json=json, headers=headers, **named)
        sent = httpx2.Headers({"host": self.base_url.netloc.decode()})
        body = content.encode() if isinstance(content, str) else content or b""
        if json is not None:
            body = jsons.dumps(json, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            sent["content-type"] = "application/json"
        if body or method in ("POST", "PUT", "PATCH"):
            sent["content-length"] = str(len(body))
        for given in (self.headers, httpx2.Headers(headers)):
            for name in given:
                sent.pop(name, None)
            sent = httpx2.Headers([*sent.raw, *given.raw])
        return self.portal.call(self._answer, method, url, sent, body)

    async def _answer(self, method: str, url: str, headers: httpx2.Headers, body: bytes) -> httpx2.Response:
        path, _, query = url.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": self._transport.root_path,  # type: ignore[attr-defined]
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.lower(), value) for name, value in headers.raw],
            "client": self._transport.client,  # type: ignore[attr-defined]
            "server": ["testserver", 80],
            "state": self.app_state.copy(),
        }
        start: Message = {"status": 500}
        parts: list[bytes] = []
        bodies, complete = [body], anyio.Event()

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop()}
            await complete.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            parts.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                complete.set()

        try:
            await self.app(scope, receive, send)
        except Exception:
            if self._transport.raise_server_exceptions:  # type: ignore[attr-defined]
                raise
        stream = httpx2.ByteStream(b"" if method == "HEAD" else b"".join(parts))
        response = httpx2.Response(start["status"], headers=start.get("headers", []), stream=stream)
        await response.aread()
        return response
