"""The transport of other ASGI servers: requests of uvicorn, Ray Serve or an application that ours is mounted in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http.gate.gate import Gate
from swiftlet_serve.http.gate.request import Head, Request


class AsgiTransport:
    """An ASGI application that passes requests to a gate."""

    def __init__(self, gate: Gate, open_first: Callable[[], Awaitable[None]]) -> None:
        """`open_first` is awaited before each request. It opens what the gate needs."""
        self._gate = gate
        self._open_first = open_first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": None})
            return
        head = _head(scope)
        await self._open_first()
        request = self._gate.begin(head)
        response = request if isinstance(request, Response) else await self._run_to_end(request, receive)
        if response is None:
            return
        headers = response.raw_headers
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head.method == "HEAD" else bytes(response.body)})

    async def _run_to_end(self, request: Request, receive: Receive) -> Response | None:
        try:
            return await self._run(request, receive)
        except BaseException:  # the other server gave up, and not the gate, which raises nothing
            self._gate.abandon(request)
            raise

    async def _run(self, request: Request, receive: Receive) -> Response | None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._gate.abandon(request)
                return None
            try:
                request.receive(message.get("body", b""))
            except SwiftletError as error:
                return self._gate.fail(request, error)
            more = message.get("more_body", False)
        answer = asyncio.ensure_future(self._gate.answer(request))
        watch = asyncio.ensure_future(_cancel_when_disconnected(answer, request, receive))
        try:
            return await answer
        finally:
            watch.cancel()


async def _cancel_when_disconnected(
    answer: asyncio.Future[Response | None], request: Request, receive: Receive
) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    request.is_disconnected = True
    answer.cancel()


def _head(scope: Scope) -> Head:
    path, mounted_at = scope["path"], scope.get("root_path", "").rstrip("/")
    if mounted_at and (path == mounted_at or path.startswith(f"{mounted_at}/")):
        path = path.removeprefix(mounted_at) or "/"
    client = scope.get("client")
    return Head(
        scope["method"],
        path,
        [(name.lower(), value) for name, value in scope["headers"]],
        client[0] if client else "",
        time.monotonic(),
        mounted_at=mounted_at,
    )
