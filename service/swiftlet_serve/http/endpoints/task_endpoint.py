"""The endpoints that run a model: body → request → pipeline → response."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from swiftlet_serve import tasks
from swiftlet_serve.errors import FieldError, Unprocessable
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.gate.request_guard import RequestContext
from swiftlet_serve.http.wording import OWN, Wording
from swiftlet_serve.inference.catalog import ModelLoading, Route
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import Request as TaskRequest
from swiftlet_serve.tasks._requests import characters
from swiftlet_serve.telemetry.request_record import RequestRecord, Stage

MAX_RESPONSE_RATIO: Final = 16
"""The maximum size of a response, as a multiple of the body. 64 texts in fill-mask need seven or eight."""

MARGIN: Final = 4
"""How many times the maximum size a response may have whose least size is within it, so that no answer is lost."""

MAX_INLINE_SEQUENCES: Final = 64
"""The number of sequences of a request from which on the response is written on a thread: 64 vectors take 2 ms."""

COMPUTE_HEADERS: Final = (
    "X-Compute-Type",
    "X-Compute-Time",
    "X-Compute-Characters",
    "X-Compute-Tokens",
    "X-Input-Tokens",
    "X-Truncated",
    "X-Total-Time",
    "X-Tokenization-Time",
    "X-Queue-Time",
    "X-Inference-Time",
)

T = TypeVar("T")


class Translation(NamedTuple):
    """A request in the terms of the tasks."""

    pipeline: Pipeline
    request: TaskRequest
    render: Callable[[Any, RequestRecord], TaskResponse]
    """Returns the response, given the task's answer and the request's record."""
    timeout_s: float | None = None
    """A timeout that the body names, in seconds since the arrival of the request."""
    wording: Wording = OWN
    """Puts errors of the request in the client's terms."""


class ModelEndpoint(ABC):
    """Answers the requests that the request guard has admitted, on one route."""

    def __init__(self, runtime: Runtime, *, json_only: bool = True) -> None:
        self.runtime = runtime
        self.json_only = json_only

    @abstractmethod
    def translate(self, scope: Scope, body: bytes | bytearray) -> Translation:
        """Translates a request.

        Raises:
            SwiftletError: the request is invalid.
        """

    async def __call__(self, request: Request) -> Response:
        """Responds to a request of the ASGI application.

        Raises:
            ClientDisconnect: the client disconnected.
            SwiftletError: as `respond` and `bodies.read`.
        """
        body = await bodies.read(request, self.runtime.settings.max_body_bytes, json_only=self.json_only)
        return await _run_while_connected(request, self.respond(request.scope, body))

    async def respond(self, scope: Scope, body: bytes | bytearray) -> Response:
        """Returns the response to a request with this body.

        Raises:
            SwiftletError: the request is invalid, is not admitted or failed.
        """
        record: RequestRecord = scope["state"]["record"]
        context: RequestContext = scope["state"]["context"]
        started = time.monotonic()
        record.body_bytes = len(body)
        deadline = context.response_deadline
        left_s = deadline - started
        self.runtime.admission.reserve(record, left_s, context.priority, complete=True, client=record.account)
        while True:
            try:
                pipeline, request, render, timeout_s, wording = self.translate(scope, body)
                break
            except ModelLoading as missing:  # again, if the model has left the memory meanwhile
                await self._wait_for_model(missing, context, record)
        record.add_stage("parse", started, time.monotonic())
        record.task, record.model = pipeline.model.task_name, pipeline.model.manifest.name
        record.version = pipeline.version
        record.characters = characters(request.inputs)  # type: ignore[attr-defined]  # of every task's request
        if timeout_s is not None:
            record.timeout_s = timeout_s
            sooner = min(context.deadline, context.received + timeout_s)
            context = context._replace(deadline=sooner)
            deadline = context.response_deadline
        try:
            max_bytes = self._max_response_bytes(pipeline, request, len(body))
            answer = await pipeline.answer(request, deadline, context.priority, record)
        except Unprocessable as error:
            wording.apply(error)
            raise
        if pipeline.on_answer is not None:
            pipeline.on_answer(request, answer, record)
        if record.sequences <= MAX_INLINE_SEQUENCES:
            response = render(answer, record)
        else:
            response = await pipeline.run_in_thread(render, answer, record)
        _check_response_size(len(response.body), MARGIN * max_bytes)
        context.check_deadline(time.monotonic())  # a blocked event loop delays the pipeline's own timeout
        response.raw_headers += _compute_headers(record, pipeline.model.engine_name)
        return response

    def _max_response_bytes(self, pipeline: Pipeline, request: TaskRequest, body_bytes: int) -> int:
        """Returns the size up to which responses are allowed.

        Raises:
            Unprocessable: the response would be larger in any case. The engine must not run in vain.
        """
        task = pipeline.model.task
        expected = getattr(task, "max_response_bytes", 0)  # of a task whose responses are always long
        max_bytes = max(self.runtime.settings.max_response_bytes, MAX_RESPONSE_RATIO * body_bytes, expected)
        least = getattr(task, "least_response_bytes", None)
        if least is not None:
            _check_response_size(least(request), max_bytes)
        return max_bytes

    async def _wait_for_model(self, missing: ModelLoading, context: RequestContext, record: RequestRecord) -> None:
        """Waits for a model that is not in memory. Such requests must not count as queued work.

        Raises:
            Unavailable: the model is not there in time, or cannot be loaded.
        """
        self.runtime.admission.release(record)
        await self.runtime.wait_for_model(missing, context.response_deadline)
        left_s = context.response_deadline - time.monotonic()
        self.runtime.admission.reserve(record, left_s, context.priority, complete=True, client=record.account)


class TaskEndpoint(ModelEndpoint):
    """The endpoint of a task's own route."""

    def __init__(self, runtime: Runtime, task: str) -> None:
        super().__init__(runtime)
        self._task = task
        self._model = tasks.load(task).TASK.Request

    def translate(self, scope: Scope, body: bytes | bytearray) -> Translation:
        scope["state"]["record"].task = self._task  # also of an invalid request
        request = bodies.parse(self._model, body)
        pipeline = self.runtime.catalog.pipeline(self._task, request.model, route_of(scope))
        return Translation(pipeline, request, renderer(request))


def renderer(request: TaskRequest) -> Callable[[Any, RequestRecord], TaskResponse]:
    """Returns the function that renders the answer to a request in our own format."""
    return TaskResponse.detailed if request.details else TaskResponse.of


def route_of(scope: Scope) -> Route:
    """Returns what the head of an admitted request says about the version of its model."""
    context: RequestContext = scope["state"]["context"]
    return context.route


class TaskResponse(Response):
    """The response to a successful request. Starlette's own constructor takes a multiple of the time."""

    body: bytes

    def __init__(self, body: bytes, media_type: bytes = b"application/json") -> None:
        self.status_code, self.background = 200, None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", media_type)]

    @classmethod
    def of(cls, answer: object, _: RequestRecord | None = None) -> TaskResponse:
        """Returns an answer as JSON."""
        return cls(dump(answer))

    @classmethod
    def detailed(cls, answer: object, record: RequestRecord) -> TaskResponse:
        """Returns an answer with `Details` as JSON."""
        details = {"input_tokens": record.input_tokens, "tokens_read": record.tokens, "truncated": record.truncated}
        return cls(b'{"answer":%b,"details":%b}' % (dump(answer), to_json(details)))


def dump(answer: object) -> bytes:
    """Returns an answer as JSON. The answers to many inputs are written one by one: other threads wait meanwhile."""
    if not isinstance(answer, list) or len(answer) <= MAX_INLINE_SEQUENCES:
        return to_json(answer)
    return b"[%b]" % b",".join([to_json(one) for one in answer])


def _compute_headers(record: RequestRecord, engine: str) -> list[tuple[bytes, bytes]]:
    """Returns the headers that tell the cost of a response.

    X-Compute-Time is in seconds, as in Hugging Face's Inference API. The times of TEI's headers are in milliseconds.
    """
    ms = {stage: 1000 * (ended - started) for stage, (started, ended) in record.stages.items()}
    total_s = time.monotonic() - record.started
    return [
        (b"server-timing", _server_timing(ms, record.batch_size).encode()),
        (b"x-compute-type", engine.encode()),
        (b"x-compute-time", b"%.3f" % total_s),
        (b"x-compute-characters", b"%d" % record.characters),
        (b"x-compute-tokens", b"%d" % record.tokens),
        (b"x-input-tokens", b"%d" % record.input_tokens),
        (b"x-truncated", b"%d" % len(record.truncated)),
        (b"x-total-time", b"%.0f" % (1000 * total_s)),
        (b"x-tokenization-time", b"%.0f" % ms.get("encode", 0.0)),
        (b"x-queue-time", b"%.0f" % ms.get("queue", 0.0)),
        (b"x-inference-time", b"%.0f" % ms.get("infer", 0.0)),
        *([] if record.version is None else [(b"x-model-version", b"%d" % record.version)]),
    ]


def _server_timing(ms: Mapping[Stage, float], batch_size: int) -> str:
    """Returns the Server-Timing header. The description of the batch holds its size, as a metric cannot hold counts."""
    size = f';desc="sequences={batch_size}"'
    return ", ".join([f"{stage};dur={each:.2f}{size if stage == 'batch' else ''}" for stage, each in ms.items()])


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
