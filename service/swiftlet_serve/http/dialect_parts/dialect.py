"""The parts of a dialect: its routes, and the form of its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pydantic import ConfigDict
from starlette.responses import Response

from swiftlet_serve.errors import SwiftletError, Unprocessable
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import MAX_INLINE_BYTES, TaskResponse, Translation
from swiftlet_serve.http.gate.request import RenderError, Request
from swiftlet_serve.http.wording import Wording
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import Cut, NullIsDefault
from swiftlet_serve.tasks._requests import Request as TaskRequest
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types.body_model import BodyModel


class Operation(NamedTuple):
    """A POST route that runs a model."""

    path: str
    """With the names of its parameters in braces."""
    summary: str
    """For /openapi.json."""
    translate: Callable[[Runtime, Request], Translation]
    """Raises SwiftletError if the request is invalid."""
    body: type[BodyModel]
    """The model of the body."""
    answer: Any
    """The type of the response."""
    json_only: bool = True
    """Whether bodies must be declared as JSON."""
    fields: frozenset[str] = frozenset()
    """The fields that only bodies of this dialect have, if a task or another dialect has the same path."""
    inline_bytes: int = MAX_INLINE_BYTES
    """The largest body that the event loop translates."""


class Page(NamedTuple):
    """A route that runs no model."""

    path: str
    """With the names of its parameters in braces."""
    summary: str
    """For /openapi.json."""
    respond: Callable[[Runtime, Mapping[str, str]], Response]
    """Is given the parameters of the path. Raises SwiftletError."""
    method: str = "GET"
    public: bool = False
    """Whether it needs no API key."""
    render_error: RenderError | None = None
    """Renders its errors; None for the function of the dialect."""


class Dialect(Protocol):
    """The members of a dialect module."""

    OPERATIONS: Sequence[Operation]
    PAGES: Sequence[Page]
    """Routes that run no model. Optional."""

    def render_error(self, error: SwiftletError, request_id: str) -> Response:
        """Returns the response to a request that failed. Never contains text from the request."""
        ...


@dataclass
class Configured:
    """A dialect whose routes depend on the settings. Its module has `configure`, which returns it, and no routes."""

    OPERATIONS: Sequence[Operation]
    PAGES: Sequence[Page]
    render_error: RenderError


class ForeignBody(NullIsDefault):
    """A body in a dialect. Fields that Swiftlet does not know are ignored, as other servers do."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True, cache_strings="keys")


def translation(
    pipeline: Pipeline,
    fields: Mapping[str, Any],
    render: Callable[[Any, RequestRecord], TaskResponse],
    wording: Wording,
    timeout_s: float | None = None,
    model: type[TaskRequest] | None = None,
    cut: Cut | None = None,
) -> Translation:
    """Returns a translation with a request of the pipeline's task.

    Args:
        pipeline: the pipeline of the model.
        fields: the fields of the request.
        render: returns the response, given the task's answer and the request's record.
        wording: puts errors of the request in the client's terms.
        timeout_s: a timeout that the body names, in seconds since the arrival of the request.
        model: the type of the request. None: the usual one of the task.
        cut: how long texts are cut, if they are. None: as the model does.

    Raises:
        Unprocessable: the fields do not fit the task.
    """
    try:
        request: TaskRequest = bodies.validate(model or pipeline.model.task.Request, fields)
    except Unprocessable as error:
        wording.apply(error)
        raise
    if cut is not None:
        request = request.cutting(cut)
    return Translation(pipeline, request, render, timeout_s, wording)
