"""The endpoint of requests that run a model: body → task request → pipeline → response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from pydantic_core import to_json
from starlette.responses import Response

from swiftlet_models.turns import in_turns
from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable, deadline_exceeded
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.receipts import Signer
from swiftlet_serve.http.gate.request import RenderError, Request
from swiftlet_serve.http.wording import OWN, Wording
from swiftlet_serve.inference.catalog import ModelLoading
from swiftlet_serve.inference.pipeline import Pipeline, check_response_size
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import Request as TaskRequest
from swiftlet_serve.tasks._requests import characters
from swiftlet_serve.telemetry.request_record import RequestRecord, Stage
from swiftlet_serve.types import json_text

P = ParamSpec("P")
T = TypeVar("T")

MAX_RESPONSE_RATIO: Final = 16
"""The maximum size of a response, as a multiple of the body. 64 texts in fill-mask need seven or eight."""

MARGIN: Final = 4
"""Factor on the maximum size, for a response whose minimum size is within the maximum. No answer is then lost."""

MARGIN_OF_TOKENS: Final = 16
"""The same for a response that may have each token, and whose minimum, computed with the tokens, is within `MARGIN`."""

MAX_INLINE_SEQUENCES: Final = 64
"""Maximum sequences of a request whose response is written on the event loop: 64 vectors take 0.5 ms."""

MAX_INLINE_BYTES: Final = 1 << 14
"""Maximum size of a body that is translated on the event loop, and whose response and receipt are written there. A
switch to a thread costs a busy server 0.5 ms."""

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
    is_whole: bool = False
    """Whether the response holds the whole answer, and is at least as large."""


Translate = Callable[[Request], Translation]
"""Translates a request of a route. May run on any thread. Raises SwiftletError if the request is invalid."""


class Foreign(NamedTuple):
    """The requests of a dialect on a route that has others, too."""

    marks: bodies.Marks
    """Tell its bodies from the others."""
    translate: Translate
    render_error: RenderError


class Endpoint:
    """What the endpoints that run models share: the place of a request in the queue, and the size of its response."""

    def __init__(self, runtime: Runtime, inline_bytes: int = MAX_INLINE_BYTES) -> None:
        """The event loop translates bodies of up to `inline_bytes`, and writes their responses."""
        self._runtime, self._inline_bytes = runtime, inline_bytes
        self._signer = Signer.create(runtime.settings)

    def _reserve(self, request: Request, now: float) -> None:
        """Reserves the place of a request whose body has arrived. Has no effect if it has one.

        Raises:
            DeadlineExceeded, Unavailable: as `AdmissionController.reserve`.
        """
        record, remaining_s = request.record, request.response_deadline - now
        self._runtime.admission.reserve(record, remaining_s, request.priority, complete=True, client=record.account)

    def _max_response_bytes(self, pipeline: Pipeline, request: TaskRequest, body_bytes: int) -> int:
        """Returns the maximum size of a response.

        Raises:
            Unprocessable: the response would be larger in any case. The engine must not run in vain.
        """
        task = pipeline.model.task
        expected = getattr(task, "max_response_bytes", 0)  # of a task whose responses are always long
        max_bytes = max(self._runtime.settings.max_response_bytes, MAX_RESPONSE_RATIO * body_bytes, expected)
        least = getattr(task, "least_response_bytes", None)
        if least is not None:
            check_response_size(least(request), max_bytes)
        return max_bytes

    async def _sign(self, request: Request, pipelines: Sequence[Pipeline], answer: Any, response: Response) -> None:
        """Adds the receipt of an answer to the response, if the server signs. There must be a pipeline."""
        if self._signer is None:
            return
        header = self._signer.header
        response.raw_headers.append(
            await self._off_loop(request, header, request, pipelines, answer, bytes(response.body))
        )

    async def _off_loop(self, request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function on a thread if the request is long, so that other requests need not wait.

        Raises:
            DeadlineExceeded: the thread had no time for it until the deadline.
        """
        if request.record.sequences <= MAX_INLINE_SEQUENCES and len(request.body) <= self._inline_bytes:
            return function(*args, **kwargs)
        try:
            async with asyncio.timeout_at(request.response_deadline):
                return await self._runtime.run_in_thread(function, *args, **kwargs)
        except TimeoutError:
            raise deadline_exceeded() from None

    async def _wait_for_model(self, missing: ModelLoading, request: Request) -> None:
        """Waits for a model that is not in memory. Such requests must not count as queued work.

        Raises:
            Unavailable: the model is not there in time, or cannot be loaded.
        """
        self._runtime.admission.release(request.record)
        await self._runtime.wait_for_model(missing, request.response_deadline)
        self._reserve(request, time.monotonic())


class ModelEndpoint(Endpoint):
    """Answers the requests of one route."""

    def __init__(
        self,
        runtime: Runtime,
        translate: Translate,
        foreign: Sequence[Foreign] = (),
        inline_bytes: int = MAX_INLINE_BYTES,
    ) -> None:
        """`foreign` are the dialects that share the route. `translate` translates all other requests."""
        super().__init__(runtime, inline_bytes)
        self._translate_own = translate
        self._foreign = foreign

    async def respond(self, request: Request) -> Response:
        """Returns the response to a request.

        Raises:
            SwiftletError: the request is invalid, is not admitted or failed.
        """
        record, started = request.record, time.monotonic()
        record.body_bytes = len(request.body)
        self._reserve(request, started)
        while True:
            try:
                translated = await self._off_loop(request, self._translate, request)
                pipeline, task_request, render, timeout_s, wording, is_whole = translated
                break
            except ModelLoading as missing:  # again, if the model has left the memory meanwhile
                await self._wait_for_model(missing, request)
        record.add_stage("parse", started, time.monotonic())
        record.task, record.model = pipeline.model.task_name, pipeline.name
        record.version = pipeline.version
        record.characters = characters(task_request.inputs)  # type: ignore[attr-defined]  # every task has them
        if timeout_s is not None:
            record.timeout_s = min(timeout_s, request.deadline - request.head.received)
            request.deadline = request.head.received + record.timeout_s
        try:
            max_bytes = self._max_response_bytes(pipeline, task_request, len(request.body))
            answer = await pipeline.answer(
                task_request,
                request.response_deadline,
                request.priority,
                record,
                max_bytes=MARGIN * max_bytes if is_whole else None,
            )
        except Unprocessable as error:
            wording.apply(error)
            raise
        if pipeline.on_answer is not None:
            pipeline.on_answer(task_request, answer, record)
        response = await self._off_loop(request, render, answer, record)
        check_response_size(len(response.body), margin(pipeline, is_whole=is_whole) * max_bytes)
        request.check_deadline(time.monotonic())  # a blocked event loop delays the pipeline's timeout
        response.raw_headers += compute_headers(record, pipeline.model.engine_name)
        await self._sign(request, [pipeline], answer, response)
        return response

    def _translate(self, request: Request) -> Translation:
        for dialect in self._foreign:
            if dialect.marks.are_in(request.body):
                request.render_error = dialect.render_error
                return dialect.translate(request)
        return self._translate_own(request)


def task_translation(runtime: Runtime, task: str) -> Translate:
    """Returns the translation of requests in our own protocol."""
    model = tasks.load(task).TASK.Request

    def translate(request: Request) -> Translation:
        request.record.task = task  # also of an invalid request
        task_request = bodies.parse(model, request.body)
        pipeline = runtime.catalog.pipeline(task, task_request.model, request.version)
        return Translation(pipeline, task_request, renderer(task_request), is_whole=True)

    return translate


def margin(pipeline: Pipeline, *, is_whole: bool = True) -> int:
    """Returns the factor on the maximum size of a response that is ready. The model must not have run in vain.

    A response that does not hold the whole answer was not checked when its texts were encoded.
    """
    return MARGIN_OF_TOKENS if is_whole and hasattr(pipeline.model.task, "least_encoded_bytes") else MARGIN


def renderer(request: TaskRequest) -> Callable[[Any, RequestRecord], TaskResponse]:
    """Returns the function that renders the answer to a request in our own format."""
    return TaskResponse.detailed if request.details else TaskResponse.of


class TaskResponse(Response):
    """The response to a successful request. Starlette's constructor takes several times as long."""

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
        return cls(dump(answer, b'{"answer":', b',"details":%b}' % to_json(details)))


def dump(answer: object, before: bytes = b"", after: bytes = b"") -> bytes:
    """Returns an answer as JSON, with other bytes around it.

    Long lists of objects are written in parts, and copied once: other threads wait meanwhile.
    """
    if isinstance(answer, list) and any(map(_is_long, answer)):
        parts = [dump(item) for item in in_turns(answer)]
    elif isinstance(answer, list) and len(answer) > MAX_INLINE_SEQUENCES:
        starts = range(0, len(answer), MAX_INLINE_SEQUENCES)
        parts = [json_text.write(answer[start : start + MAX_INLINE_SEQUENCES])[1:-1] for start in in_turns(starts)]
    else:
        return before + json_text.write(answer) + after
    parts[0] = before + b"[" + parts[0]
    parts[-1] += b"]" + after  # of the same part if there is one
    return b",".join(parts)


def _is_long(item: object) -> bool:
    """Returns whether an answer is a long list. A list of numbers is a vector, which takes little time."""
    return isinstance(item, list) and len(item) > MAX_INLINE_SEQUENCES and not isinstance(item[0], int | float)


def compute_headers(record: RequestRecord, engine: str) -> list[tuple[bytes, bytes]]:
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
    return ", ".join(
        [f"{stage};dur={duration:.2f}{size if stage == 'batch' else ''}" for stage, duration in ms.items()]
    )
