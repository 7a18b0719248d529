"""The endpoint of a task: body → request → pipeline → response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import FieldError, Unprocessable
from swiftlet_serve.service.http import bodies
from swiftlet_serve.service.http.request_guard import RequestContext
from swiftlet_serve.service.http.routes import Endpoint
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.telemetry import request_record
from swiftlet_serve.service.telemetry.request_record import RequestRecord

MAX_RESPONSE_RATIO: Final = 16
"""The maximum size of a response, as a multiple of the body. 64 texts in fill-mask need seven or eight."""

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

T = TypeVar("T")


def task_endpoint(runtime: Runtime, task: str) -> Endpoint:
    """Returns the endpoint that answers requests to a task. The request guard has admitted them."""
    model = runtime.tasks[task].model.task.Request

    async def answer(request: Request) -> Response:
        context: RequestContext = request.state.context
        record: RequestRecord = request.state.record
        record.task = task
        raw = await bodies.read(request, runtime.settings.max_body_bytes)
        record.body_bytes = len(raw)
        runtime.admission.reserve(record, context.response_deadline - time.monotonic(), context.priority, complete=True)
        with request_record.measure("parse"):
            body = bodies.parse(model, raw)
        pipeline = runtime.pipeline(task, body.model)
        record.model = pipeline.model.manifest.name
        record.characters = tasks.characters(body.inputs)
        work = pipeline.answer(body, context.response_deadline, context.priority, record)
        answer = await _run_while_connected(request, work)
        headers = _compute_headers(record, pipeline.model.engine_name)
        response = Response(to_json(answer), headers=headers, media_type=JSON)
        max_bytes = max(runtime.settings.max_response_bytes, MAX_RESPONSE_RATIO * len(raw))
        _check_response_size(len(response.body), max_bytes)
        context.check_deadline(time.monotonic())  # a blocked event loop delays the pipeline's own timeout
        return response

    return answer


def _compute_headers(record: RequestRecord, engine: str) -> dict[str, str]:
    """Returns the headers that tell the cost of a response.

    X-Compute-Time is in seconds, as in Hugging Face's Inference API. The times of TEI's headers are in milliseconds.
    """
    ms = {stage: 1000 * span.duration_s for stage, span in record.stages.items()}
    total_s = time.monotonic() - record.started
    return {
        "server-timing": ", ".join(
            _server_timing(stage, ms[stage], record) for stage in request_record.STAGES if stage in ms
        ),
        "x-compute-type": engine,
        "x-compute-time": f"{total_s:.3f}",
        "x-compute-characters": str(record.characters),
        "x-compute-tokens": str(record.tokens),
        "x-total-time": f"{1000 * total_s:.0f}",
        "x-tokenization-time": f"{ms.get('encode', 0):.0f}",
        "x-queue-time": f"{ms.get('queue', 0):.0f}",
        "x-inference-time": f"{ms.get('infer', 0):.0f}",
    }


def _server_timing(stage: request_record.Stage, ms: float, record: RequestRecord) -> str:
    """Returns a metric of the Server-Timing header. Its description holds the batch size, as it cannot hold counts."""
    description = f';desc="rows={record.batch_size}"' if stage == "batch" else ""
    return f"{stage};dur={ms:.2f}{description}"


def _check_response_size(size: int, max_bytes: int) -> None:
    """Limits the response, so that a small request cannot cause a large one.

    Raises:
        Unprocessable: the response is larger than `max_bytes`.
    """
    if size > max_bytes:
        detail = f"The response would be larger than {max_bytes} bytes. Lower top_k or send fewer inputs."
        error = FieldError("", "answer_too_large", max_bytes)
        raise Unprocessable("answer_too_large", detail, field_errors=[error])


async def _run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. Cancels it if the client disconnects.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    task, is_disconnected = asyncio.current_task(), False
    assert task is not None  # noqa: S101  # for the type checker
    other_cancellations = task.cancelling()

    async def watch() -> None:
        nonlocal is_disconnected
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_disconnected = True
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    except (Exception, asyncio.CancelledError):  # an error at the same moment has no reader
        if is_disconnected and task.uncancel() <= other_cancellations:  # otherwise the server cancelled it too
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()
