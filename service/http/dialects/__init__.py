"""The dialects: protocols of other servers, so that their clients work unchanged. One module each.

A dialect module defines the members of `Dialect`. It translates a request into one of ours, and our answer and errors
back. It runs nothing itself: deadlines, admission, limits and statistics are those of every request. No other file
lists the dialects, so a new dialect is a new file in this package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from swiftlet_serve.service import plugins
from swiftlet_serve.service.errors import SetupError, SwiftletError
from swiftlet_serve.service.http.task_endpoint import Translation
from swiftlet_serve.service.runtime import Runtime


class Call(NamedTuple):
    """A request, whose body has been read."""

    parameters: Mapping[str, str]
    """Those of the path."""
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes | bytearray


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


class Foreign(BaseModel):
    """A body in a dialect. Fields that Swiftlet does not know are ignored, as other servers do."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True, cache_strings="keys")


def names() -> list[str]:
    """Returns the names of all dialects, sorted. Imports none of them."""
    return [name.replace("_", "-") for name in plugins.names(sys.modules[__name__])]


def load(name: str) -> Dialect:
    """Imports the dialect of this name.

    Raises:
        SetupError: there is no such dialect.
    """
    if name not in names():
        raise SetupError(f"There is no dialect {name!r}. The dialects are {', '.join(names())}.")
    return cast(Dialect, plugins.load(sys.modules[__name__], name.replace("-", "_")))
