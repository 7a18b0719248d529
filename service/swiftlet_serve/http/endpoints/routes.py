"""The route class of the application, and its endpoints that do not run a model.

FastAPI holds the routes and describes them in /openapi.json, but it does not run them: `PlainRoute` calls the endpoint
itself. An endpoint takes the request and returns a response, so it has no parameters or dependencies to resolve.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from swiftlet_serve.http import playground
from swiftlet_serve.http.endpoints import openapi, status
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry import prometheus

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

MAX_REST_S: Final = 0.1


class PlainRoute(APIRoute):
    """A route that calls its endpoint with the request and sends the response, without FastAPI's parameter handling.

    A route for GET answers HEAD, too, with the same headers. `methods` lacks it, so that /openapi.json does. The server
    leaves out the body.
    """

    def __init__(self, path: str, endpoint: Endpoint, **description: Any) -> None:
        super().__init__(path, endpoint, **description)
        self.description = description.get("description") or ""  # FastAPI takes the endpoint's docstring otherwise

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = run
        methods = self.methods or set()
        self._allowed = methods | {"HEAD"} if "GET" in methods else methods

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        is_allowed = match is Match.PARTIAL and scope["method"] in self._allowed
        return Match.FULL if is_allowed else match, child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in self._allowed:
            raise HTTPException(405, headers={"allow": ", ".join(sorted(self._allowed))})
        await self.app(scope, receive, send)


def paced(endpoint: Endpoint) -> Endpoint:
    """Answers one request at a time, and rests after it as long as it took: a thread or another process does the work.

    Without a limit, many scrapes at a time would compete with the requests that run a model. A request whose client has
    gone meanwhile gives up its turn, so that clients who ask and leave keep nobody waiting.
    """
    lock, rest_end = asyncio.Lock(), 0.0

    @wraps(endpoint)
    async def respond(request: Request) -> Response:
        nonlocal rest_end
        async with lock:
            await asyncio.sleep(max(0.0, rest_end - time.monotonic()))
            if await request.is_disconnected():
                raise ClientDisconnect
            started = time.monotonic()
            try:
                return await endpoint(request)
            finally:
                now = time.monotonic()
                rest_end = now + min(now - started, MAX_REST_S)

    return respond


async def live(_: Request) -> Response:
    return JSONResponse({"live": True})


def ready(runtime: Runtime) -> Endpoint:
    async def ready(_: Request) -> Response:
        runtime.check_ready()
        return JSONResponse({"ready": True})

    return ready


def models(runtime: Runtime) -> Endpoint:
    async def models(_: Request) -> Response:
        defaults, repository = runtime.tasks.values(), runtime.repository_state()
        versions = [] if repository is None else repository.versions
        return JSONResponse(
            [
                openapi.describe(
                    pipeline,
                    pipeline in defaults,
                    runtime.engine_title(pipeline),
                    [one for one in versions if one.model == name],
                )
                for name, pipeline in runtime.pipelines.items()
            ]
        )

    return models


def metrics(runtime: Runtime) -> Endpoint:
    @paced
    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", ""), request.headers.get("accept-encoding", "")
        found = await prometheus.scrape(runtime, *accept)
        encoding = {} if found.encoding is None else {"content-encoding": found.encoding}
        headers = {"vary": "Accept, Accept-Encoding", **encoding}
        return Response(found.body, headers=headers, media_type=found.media_type)

    return metrics


def server_status(runtime: Runtime) -> Endpoint:
    @paced
    async def server_status(_: Request) -> Response:
        return JSONResponse(status.describe(await runtime.snapshot(), time.monotonic()).model_dump())

    return server_status


def playground_file(file: playground.File) -> Endpoint:
    async def playground_file(request: Request) -> Response:
        return file.respond(request)

    return playground_file
