"""The HTTP service: one route for each task served, made from the tasks, and a few that say how things are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import FieldError, MethodNotAllowed, NotFound, Unprocessable
from swiftlet_serve.service.http import bodies, openapi, playground, status
from swiftlet_serve.service.http.api_keys import Keys
from swiftlet_serve.service.http.middleware import Edge, Observer, Reception
from swiftlet_serve.service.http.request_guard import LIVE, READY, RequestContext, RequestGuard
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.telemetry import prometheus, request_record
from swiftlet_serve.service.telemetry.request_record import RequestRecord

ANSWER_SHARE: Final = 16  # bytes of an answer for each of the body: 64 texts of prose in fill-mask make seven or eight
METRICS: Final = "/metrics"
JSON: Final = "application/json"
COMPUTE_HEADERS: Final = (
    "X-Compute-Type",
    "X-Compute-Time",
    "X-Compute-Characters",
    "X-Compute-Tokens",
    "X-Total-Time",
    "X-Tokenization-Time",
    "X-Queue-Time",
    "X-Inference-Time",
)
CORS: Final[Any] = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": [
        "Authorization",
        "Content-Type",
        "X-API-Key",
        "X-Request-Id",
        "X-Request-Priority",
        "X-Request-Timeout-Ms",
    ],
    "expose_headers": ["Retry-After", "Server-Timing", *COMPUTE_HEADERS, "X-Request-Id"],
}
NO_TELEMETRY: Final[Any] = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
"""FastAPI's own would hold addresses as they came, which may be somebody's text; `service.telemetry.tracing`."""

T = TypeVar("T")


def create_app(runtime: Runtime, keys: Keys | None = None, observers: Sequence[Observer] = ()) -> FastAPI:
    """The application over a runtime that is loaded; it opens the runtime when it starts and closes it when it ends.

    With `keys`, every address but those of health and of the page answers only who brings one. The runtime's stats are
    told of every request, and so are the `observers`. A server that has read a head may ask `app.state.refuse` of its
    scope for an answer, before it starts the application: to turn a request away so takes a fraction of the time.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await runtime.open()
        yield
        await runtime.close()

    app = FastAPI(
        title="Swiftlet",
        version=openapi.version(),
        docs_url=None,  # the pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={HTTPException: _translate},
        telemetry=NO_TELEMETRY,
    )
    app.router.route_class = PlainRoute
    gate = RequestGuard(runtime, keys, runtime.tasks)
    reception = Reception(runtime, gate, [runtime.stats.finish, *observers])
    app.state.refuse = reception.refuse
    app.add_middleware(Edge, reception=reception)
    if origins := runtime.settings.cors_origins:  # the outermost, so that a page can read errors too
        app.add_middleware(CORSMiddleware, allow_origins=origins, **CORS)
        app.state.refuse = lambda scope: None if "origin" in Headers(scope=scope) else reception.refuse(scope)
    for task in runtime.tasks:
        app.add_api_route(f"/{task}", _answering(runtime, task), methods=["POST"], **openapi.task(runtime, task))
    app.add_api_route("/models", _listing(runtime), methods=["GET"], **openapi.MODELS)
    app.add_api_route(LIVE, _live, methods=["GET"], **openapi.LIVE)
    app.add_api_route(READY, _readiness(runtime), methods=["GET"], **openapi.READY)
    if runtime.settings.admin_port is None:
        app.add_api_route(METRICS, _measuring(runtime), methods=["GET"], **openapi.METRICS)
    app.add_api_route("/status", _looking(runtime), methods=["GET"], **openapi.STATUS)
    for path, file in playground.FILES.items():
        app.add_api_route(path, _showing(file), methods=["GET", "HEAD"], include_in_schema=False)
    openapi.install(app, runtime)
    return app


def create_admin(runtime: Runtime) -> Starlette:
    """What the own port has. It runs on another thread than the runtime, of which it only reads."""
    app = Starlette(
        routes=[
            Route(LIVE, _live, methods=["GET"]),
            Route(READY, _readiness(runtime), methods=["GET"]),
            Route(METRICS, _measuring(runtime), methods=["GET"]),
        ],
        middleware=[Middleware(Edge, reception=Reception(runtime, RequestGuard(runtime)))],
        exception_handlers={HTTPException: _translate},
    )
    app.router.redirect_slashes = False
    return app


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PlainRoute(APIRoute):
    """A route whose endpoint reads its own request: FastAPI describes it, and has no part in answering.

    To look for parameters and dependencies that no endpoint here has took a twentieth of all that a request costs.
    """

    def __init__(self, path: str, endpoint: Handler, **described: Any) -> None:
        super().__init__(path, endpoint, **described)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = answer


def _answering(runtime: Runtime, task: str) -> Handler:
    model = runtime.tasks[task].model.task.Request

    async def answer(request: Request) -> Response:
        visit: RequestContext = request.state.visit  # the gate has let it in
        record: RequestRecord = request.state.record
        record.task = task
        raw = await bodies.read(request, runtime.settings.max_body_bytes)
        record.body_bytes = len(raw)
        runtime.expect(record, visit.due - time.monotonic(), visit.priority, whole=True)
        with request_record.measure("parse"):
            body = bodies.parse(model, raw)
        pipeline = runtime.pipeline(task, body.model)
        record.model = pipeline.model.manifest.name
        record.characters = tasks.characters(body.inputs)
        answer = await _while_connected(request, pipeline.answer(body, visit.due, visit.priority))
        response = Response(to_json(answer), headers=_costs(record, pipeline.model.engine_name), media_type=JSON)
        _check_answer(len(response.body), max(runtime.settings.max_answer_bytes, ANSWER_SHARE * len(raw)))
        visit.check(time.monotonic())  # an event loop that lags lets timers go off late, too
        return response

    return answer


def _costs(record: RequestRecord, engine: str) -> dict[str, str]:
    """What a response says of how it came about.

    X-Compute-Time is in seconds, as from Hugging Face's Inference API; TEI's own headers are in whole milliseconds.
    """
    ms = {stage: 1000 * span.duration_s for stage, span in record.stages.items()}
    total_s = time.monotonic() - record.started
    return {
        "server-timing": ", ".join(_timing(stage, ms[stage], record) for stage in request_record.STAGES if stage in ms),
        "x-compute-type": engine,
        "x-compute-time": f"{total_s:.3f}",
        "x-compute-characters": str(record.characters),
        "x-compute-tokens": str(record.tokens),
        "x-total-time": f"{1000 * total_s:.0f}",
        "x-tokenization-time": f"{ms.get('encode', 0):.0f}",
        "x-queue-time": f"{ms.get('queue', 0):.0f}",
        "x-inference-time": f"{ms.get('infer', 0):.0f}",
    }


def _timing(stage: request_record.Stage, ms: float, record: RequestRecord) -> str:
    """A metric of Server-Timing. What the standard has for anything but a duration is a description."""
    described = f';desc="rows={record.batch_size}"' if stage == "batch" else ""
    return f"{stage};dur={ms:.2f}{described}"


def _check_answer(size: int, most: int) -> None:
    """Whoever sends little shall not have much sent back.

    Raises:
        Unprocessable: the answer is larger than may be sent.
    """
    if size > most:
        detail = f"The answer has more than {most} bytes: ask for fewer, or send fewer inputs."
        raise Unprocessable("answer_too_large", detail, field_errors=[FieldError("", "answer_too_large", most)])


def _listing(runtime: Runtime) -> Handler:
    async def models(_: Request) -> Response:
        defaults = runtime.tasks.values()
        return JSONResponse(
            [openapi.describe(pipeline, pipeline in defaults) for pipeline in runtime.pipelines.values()]
        )

    return models


def _readiness(runtime: Runtime) -> Handler:
    async def ready(_: Request) -> Response:
        runtime.check_ready()
        return JSONResponse({"ready": True})

    return ready


def _measuring(runtime: Runtime) -> Handler:
    async def measure(_: Request) -> Response:
        return Response(await prometheus.scrape(runtime), media_type=prometheus.MEDIA_TYPE)

    return measure


def _looking(runtime: Runtime) -> Handler:
    async def look(_: Request) -> Response:
        return JSONResponse(status.describe(await runtime.snapshot(), time.monotonic()).model_dump())

    return look


def _showing(file: playground.File) -> Handler:
    async def show(request: Request) -> Response:
        return file.answer(request)

    return show


async def _live(_: Request) -> Response:
    return JSONResponse({"live": True})


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up.

    Raises:
        ClientDisconnect: it did.
    """
    worker, gone = asyncio.current_task(), False
    assert worker is not None  # noqa: S101  # tells the type checker
    ended = worker.cancelling()  # by others, before

    async def watch() -> None:
        nonlocal gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        worker.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    except (Exception, asyncio.CancelledError):  # what fails at the same moment is told to nobody
        if gone and worker.uncancel() <= ended:  # else somebody else wants an end, too
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()


async def _translate(_: Request, error: Exception) -> NoReturn:
    """What Starlette's router refuses becomes an error of ours."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        raise NotFound("unknown_route", "There is nothing at this address.") from None
    if status == 405 and isinstance(error, HTTPException):
        detail = "This address does not take that method."
        raise MethodNotAllowed("method_not_allowed", detail, headers=error.headers) from None
    raise error
