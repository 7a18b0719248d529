"""The routes that run a model: which one a path belongs to, decided before the body of a request is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Scope

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import problem_details

RenderError = Callable[[SwiftletError, str], Response]
"""Makes the response to a failed request from its error and the ID of the request."""


class Endpoint(Protocol):
    """Answers the requests of a route that runs a model."""

    @property
    def json_only(self) -> bool:
        """Whether bodies must be declared as JSON."""
        ...

    async def respond(self, scope: Scope, body: bytes | bytearray) -> Response:
        """Returns the response to an admitted request.

        Raises:
            SwiftletError: the request is invalid, is not admitted or failed.
        """
        ...


class Route(NamedTuple):
    """A route of the application."""

    path: str
    """The path, with the names of its parameters in braces."""
    endpoint: Endpoint | None
    """Answers POST requests by running a model. None if the route runs none."""
    render_error: RenderError = problem_details.render
    public: bool = False
    """Whether it needs no API key."""


class Match(NamedTuple):
    """A route, and the parameters of a request's path."""

    route: Route
    parameters: Mapping[str, Any]


class RouteTable:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._exact: dict[str, Match] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], Route]]] = {}  # by the first part of the path
        for route in routes:
            if "{" in route.path:
                patterns = self._patterns.setdefault(_first_part(route.path), [])
                patterns.append((compile_path(route.path)[0], route))
            else:
                self._exact[route.path] = Match(route, {})

    def match(self, path: str) -> Match | None:
        """Returns the route of a path with its parameters, or None if the table does not have it."""
        if (found := self._exact.get(path)) is not None:
            return found
        for pattern, route in self._patterns.get(_first_part(path), ()):
            if (match := pattern.match(path)) is not None:
                return Match(route, match.groupdict())
        return None


def _first_part(path: str) -> str:
    return path[1:].partition("/")[0]
