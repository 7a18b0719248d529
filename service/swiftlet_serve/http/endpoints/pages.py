"""The routes that run no model: health, metrics, status, the list of models and the playground."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import wraps
from typing import Final

from starlette.responses import JSONResponse, Response

from swiftlet_serve.http import playground
from swiftlet_serve.http.endpoints import models, openapi, status
from swiftlet_serve.http.gate.request import Request, Respond, Route
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry import prometheus

LIVE: Final = "/health/live"
READY: Final = "/health/ready"
METRICS: Final = "/metrics"
STATUS: Final = "/status"
MODELS: Final = "/models"
MAX_REST_S: Final = 0.1


def health(runtime: Runtime) -> Iterator[Route]:
    """Returns the routes of the health checks."""

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_: Request) -> Response:
        runtime.check_ready()
        return JSONResponse({"ready": True})

    yield Route("GET", LIVE, live, public=True, describe=openapi.live)
    yield Route("GET", READY, ready, public=True, describe=openapi.ready)


def metrics(runtime: Runtime) -> Route:
    """Returns the route of the metrics for Prometheus."""

    @paced
    async def respond(request: Request) -> Response:
        accept = request.headers.get("accept", ""), request.headers.get("accept-encoding", "")
        scraped = await prometheus.scrape(runtime, *accept)
        coding = {} if scraped.encoding is None else {"content-encoding": scraped.encoding}
        headers = {"vary": "Accept, Accept-Encoding", **coding}
        return Response(scraped.body, headers=headers, media_type=scraped.media_type)

    return Route("GET", METRICS, respond, describe=openapi.metrics)


def server_status(runtime: Runtime) -> Route:
    """Returns the route of the server's status."""

    @paced
    async def respond(_: Request) -> Response:
        return JSONResponse(status.describe(await runtime.snapshot(), time.monotonic()).model_dump())

    return Route("GET", STATUS, respond, describe=openapi.status)


def served_models(runtime: Runtime) -> Route:
    """Returns the route that describes the served models."""

    async def respond(_: Request) -> Response:
        defaults, repository = runtime.tasks.values(), runtime.repository_state()
        versions = [] if repository is None else repository.versions
        return JSONResponse(
            [
                models.describe(
                    pipeline,
                    pipeline in defaults,
                    runtime.engine_title(pipeline),
                    [version for version in versions if version.model == name],
                )
                for name, pipeline in runtime.pipelines.items()
            ]
        )

    return Route("GET", MODELS, respond, describe=openapi.models)


def playground_files(tasks: Sequence[str]) -> Iterator[Route]:
    """Returns the routes of the playground's files.

    Clients that are given the server's address post to the page. Their error names the routes of `tasks`.
    """
    paths = ", ".join(f"/{task}" for task in tasks)
    advice = f"A request goes to the route of its task, and not to the server's own address. Use {paths}."
    for path, file in playground.FILES.items():
        yield Route("GET", path, _file(file), public=True, advice=advice if path == "/" else "")


def paced(respond: Respond) -> Respond:
    """Answers one request at a time, and rests after it as long as it took: a thread or another process does the work.

    Without a limit, many scrapes at a time would compete with the requests that run a model. A request whose client has
    gone meanwhile is cancelled, and gives up its turn.
    """
    lock, rest_end = asyncio.Lock(), 0.0

    @wraps(respond)
    async def respond_in_turn(request: Request) -> Response:
        nonlocal rest_end
        async with lock:
            await asyncio.sleep(max(0.0, rest_end - time.monotonic()))
            started = time.monotonic()
            work = asyncio.ensure_future(respond(request))
            try:
                return await asyncio.shield(work)
            finally:
                await asyncio.gather(work, return_exceptions=True)  # also if the client has gone: threads go on
                now = time.monotonic()
                rest_end = now + min(now - started, MAX_REST_S)

    return respond_in_turn


def _file(file: playground.File) -> Respond:
    async def respond(request: Request) -> Response:
        return file.respond(request.headers.get("if-none-match", ""))

    return respond
