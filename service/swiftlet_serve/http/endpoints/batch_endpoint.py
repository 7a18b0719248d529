"""The endpoint `/batch`: several requests of any tasks in one. Models that share a trunk read a text of it once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, Field
from starlette.responses import Response

from swiftlet_models.turns import in_turns
from swiftlet_serve import tasks
from swiftlet_serve.errors import SwiftletError, Unavailable, Unprocessable, invalid_value
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import (
    MARGIN,
    Endpoint,
    TaskResponse,
    compute_headers,
    dump,
    margin,
    renderer,
)
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.catalog import ModelLoading
from swiftlet_serve.inference.pipeline import Pipeline, Together, check_response_size
from swiftlet_serve.tasks._requests import Request as TaskRequest
from swiftlet_serve.tasks._requests import Strict, characters, failure
from swiftlet_serve.telemetry.request_record import RequestRecord

MAX_REQUESTS: Final = 64


class BatchRequest(Strict):
    """Answers several requests, of any tasks and models."""

    max_items = 32_768

    requests: Annotated[
        list[dict[str, Any]],
        Field(
            description="The requests: each is the body of a task's route, with the name of the task as `task`.",
            min_length=1,
            max_length=MAX_REQUESTS,
        ),
    ]
    partial: Annotated[
        bool,
        Field(
            description="If true, an invalid request fails alone, and its error takes the place of its answer. If "
            "false, it fails all requests."
        ),
    ] = False


class BatchResponse(BaseModel):
    """The answers to several requests."""

    answers: Annotated[list[Any], Field(description="The response to each request, in order, as its route sends it.")]


class Member(NamedTuple):
    """One of the requests."""

    pipeline: Pipeline
    request: TaskRequest
    record: RequestRecord  # counts for its model as if it had come alone
    max_bytes: int


class BatchEndpoint(Endpoint):
    """Answers several requests at the same time."""

    async def respond(self, request: Request) -> Response:
        """Returns the response to a request.

        Raises:
            SwiftletError: the request, or one of those that it holds, is invalid, is not admitted or failed.
        """
        record, started = request.record, time.monotonic()
        record.body_bytes, record.task = len(request.body), "batch"
        self._reserve(request, started)
        body = await self._off_loop(request, bodies.parse, BatchRequest, request.body)
        members = await self._members(request, body)
        record.add_stage("parse", started, time.monotonic())
        if (limiter := self._runtime.rate_limiter) is not None:
            limiter.check_tokens(record.account, now := time.monotonic())
            limiter.charge_requests(record.account, now, len(members))
            for member in members:
                if isinstance(member, Member):
                    member.record.charged = True
        self._runtime.admission.release(record)  # each request asks for admission
        answers = await self._answer(request, members, partial=body.partial)
        _summarise(record, members)
        pipeline = next((member.pipeline for member in members if isinstance(member, Member)), None)
        response = await self._off_loop(request, _render, members, answers)
        request.check_deadline(time.monotonic())
        engine = "" if pipeline is None else pipeline.model.engine_name
        response.raw_headers += compute_headers(record, engine)
        answered = [
            member.pipeline
            for member, answer in zip(members, answers, strict=True)
            if isinstance(member, Member) and not isinstance(answer, SwiftletError)
        ]
        if answered:  # an error has no receipt
            plain = [failure(one).model_dump() if isinstance(one, SwiftletError) else one for one in answers]
            await self._sign(request, answered, plain, response)
        return response

    async def _members(self, request: Request, body: BatchRequest) -> list[Member | SwiftletError]:
        """Returns the requests, or their errors if the batch is partial. Waits once for each model.

        Raises:
            SwiftletError: a request is invalid, a model is not there in time, or not all models fit into the memory.
        """
        waited = set[tuple[str, int]]()
        while True:
            try:  # all of them: a model may leave the memory while the batch waits for another one
                return await self._off_loop(request, self._read_members, request, body)
            except ModelLoading as missing:
                if (missing.name, missing.version) in waited:
                    detail = "The models of the batch are not in memory at the same time. Send a batch for each."
                    raise Unavailable("model_loading", detail, retry_after=1.0) from None
                waited.add((missing.name, missing.version))
                await self._wait_for_model(missing, request)

    def _read_members(self, request: Request, body: BatchRequest) -> list[Member | SwiftletError]:
        """Returns the requests, with the errors of `_members` and ModelLoading."""
        members: list[Member | SwiftletError] = []
        for number, fields in enumerate(in_turns(body.requests)):
            try:
                members.append(self._parse(request, dict(fields)))
            except ModelLoading:
                raise
            except SwiftletError as error:
                own = _located(error, number)
                if not body.partial:
                    raise own from None
                members.append(own)
        return members

    def _parse(self, request: Request, fields: dict[str, Any]) -> Member:
        name = fields.pop("task", None)
        if name not in self._runtime.task_names:
            detail = f"The task is unknown. Send one of: {', '.join(self._runtime.task_names)}."
            raise invalid_value("/task", "missing" if name is None else "literal_error", detail)
        task_request: TaskRequest = bodies.validate(tasks.load(name).TASK.Request, fields)
        pipeline = self._runtime.catalog.pipeline(name, task_request.model, request.version)
        about = request.record
        record = RequestRecord(about.id, about.method, f"/{name}", client=about.client, account=about.account)
        record.task, record.model, record.version = name, pipeline.name, pipeline.version
        record.bulk, record.timeout_s = about.bulk, about.timeout_s
        record.characters = characters(task_request.inputs)  # type: ignore[attr-defined]  # every task has them
        return Member(
            pipeline, task_request, record, self._max_response_bytes(pipeline, task_request, len(request.body))
        )

    async def _answer(self, request: Request, members: Sequence[Member | SwiftletError], *, partial: bool) -> list[Any]:
        """Returns the answer to each request, or its error if the batch is partial.

        Raises:
            SwiftletError: a request failed.
        """
        together = Together(sum(isinstance(member, Member) for member in members))

        async def answer(number: int, member: Member | SwiftletError) -> Any:
            if isinstance(member, SwiftletError):
                return member
            pipeline, task_request, record, max_bytes = member
            try:
                answer = await pipeline.answer(
                    task_request,
                    request.response_deadline,
                    request.priority,
                    record,
                    together,
                    MARGIN * max_bytes,
                )
            except SwiftletError as error:
                request.record.minimum_s = max(request.record.minimum_s, record.minimum_s)
                own = _located(error, number)
                record.status, record.code = own.status, own.code
                if not partial or own.retryable:
                    raise own from None
                return own
            else:
                record.status = 200
                if pipeline.on_answer is not None:
                    pipeline.on_answer(task_request, answer, record)
                return answer
            finally:
                record.ended = time.monotonic()
                if record.accepted:  # the batch counts the others
                    self._runtime.stats.finish(record)

        running = [asyncio.ensure_future(answer(number, member)) for number, member in enumerate(members)]
        try:
            return await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()


def _located(error: SwiftletError, number: int) -> SwiftletError:
    """Returns the error of one of the requests, with the places of its values in the body."""
    if isinstance(error, Unprocessable):
        error.field_errors = tuple(
            replace(field, pointer=f"/requests/{number}{field.pointer}") for field in error.field_errors
        )
    return error


def _summarise(record: RequestRecord, members: Sequence[Member | SwiftletError]) -> None:
    """Notes the work of all requests in the record of the batch."""
    for part in (member.record for member in members if isinstance(member, Member)):
        record.characters += part.characters
        record.sequences += part.sequences
        record.tokens += part.tokens
        record.kept_tokens += part.kept_tokens
        record.left_out += part.left_out
        record.truncated += part.truncated
        record.batch_size = max(record.batch_size, part.batch_size)
        for stage, span in part.stages.items():
            record.add_stage(stage, *span)


def _render(members: Sequence[Member | SwiftletError], answers: Sequence[Any]) -> TaskResponse:
    """Returns the response with all answers.

    Raises:
        Unprocessable: an answer is too large.
    """
    parts = []
    for member, answer in in_turns(zip(members, answers, strict=True)):
        if isinstance(member, SwiftletError) or isinstance(answer, SwiftletError):
            parts.append(dump(failure(answer).model_dump()))
            continue
        render: Callable[[Any, RequestRecord], TaskResponse] = renderer(member.request)
        part = render(answer, member.record).body
        check_response_size(len(part), margin(member.pipeline) * member.max_bytes)
        parts.append(part)
    return TaskResponse(b'{"answers":[%b]}' % b",".join(parts))
