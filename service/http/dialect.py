"""The parts of a dialect: its routes, and the form of its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from swiftlet_serve.service.catalog import ANY, Route
from swiftlet_serve.service.errors import SwiftletError
from swiftlet_serve.service.http.bodies import INVALID_VALUES
from swiftlet_serve.service.http.task_endpoint import Translation
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.tasks import NullIsDefault


class Call(NamedTuple):
    """A request, whose body has been read."""

    parameters: Mapping[str, str]
    """Those of the path."""
    headers: Sequence[tuple[bytes, bytes]]
    """With names in lower case."""
    body: bytes | bytearray
    route: Route = ANY
    """What the head says about the version of the model."""

    def header(self, name: str) -> str | None:
        """Returns the first header of this name, given in lower case."""
        wanted = name.encode()
        for key, value in self.headers:
            if key == wanted:
                return value.decode("latin-1")
        return None


class Operation(NamedTuple):
    """A POST route that runs a model."""

    path: str
    """With the names of its parameters in braces."""
    summary: str
    """For /openapi.json."""
    translate: Callable[[Runtime, Call], Translation]
    """Raises SwiftletError if the request is invalid."""
    body: type[BaseModel]
    """The model of the body."""
    answer: Any
    """The type of the response."""
    json_only: bool = True
    """Whether bodies must be declared as JSON."""
    fields: frozenset[str] = frozenset()
    """If the path is that of a task, too: the fields that only bodies of this dialect have."""


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


class Dialect(Protocol):
    """The members of a dialect module."""

    OPERATIONS: Sequence[Operation]
    PAGES: Sequence[Page]

    def render_error(self, error: SwiftletError, request_id: str) -> Response:
        """Returns the response to a request that failed. Never contains text from the request."""
        ...


class Foreign(NullIsDefault):
    """A body in a dialect. Fields that Swiftlet does not know are ignored, as other servers do."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True, cache_strings="keys")


def error_sentence(error: SwiftletError) -> str:
    """Returns the detail of an error for formats without a list of errors. It names the first invalid value, if any."""
    if error.detail != INVALID_VALUES or not error.field_errors:
        return error.detail
    first = error.field_errors[0]
    return f"The body has an invalid value at {first.pointer or 'its root'}: {first.code}."
