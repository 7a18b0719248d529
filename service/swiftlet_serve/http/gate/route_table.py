"""The routes of an application: which one answers a method and a path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from starlette.routing import compile_path

from swiftlet_serve.errors import MethodNotAllowed, NotFound
from swiftlet_serve.http.gate.request import Route

NO_PARAMETERS: Final[Mapping[str, str]] = {}


class Match(NamedTuple):
    """The route of a path, and the parameters of a request's path."""

    route: Route
    """The route of the method. If no route supports the method, the first route of the path."""
    parameters: Mapping[str, str]
    allow: str
    """The supported methods if the route does not support the request's method; otherwise empty."""


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        """Creates a table. Of two routes with the same method and path, the first one counts."""
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_method = by_path.setdefault(route.path, {})
            by_method.setdefault(route.method, route)
            if route.method == "GET":
                by_method.setdefault("HEAD", route)
        self.routes: Sequence[Route] = [
            route for by_method in by_path.values() for method, route in by_method.items() if method == route.method
        ]
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], dict[str, Route]]]] = {}  # by the path's first part
        for path, by_method in by_path.items():
            if "{" in path:
                self._patterns.setdefault(_first_part(path), []).append((compile_path(path)[0], by_method))
            else:
                self._exact[path] = by_method

    def match(self, method: str, path: str) -> Match | None:
        """Returns the route of a request; None if the table does not have the path."""
        by_method, parameters = self._exact.get(path), NO_PARAMETERS
        if by_method is None:
            for pattern, candidate in self._patterns.get(_first_part(path), ()):
                if (match := pattern.match(path)) is not None:
                    by_method, parameters = candidate, match.groupdict()
                    break
            else:
                return None
        route = by_method.get(method)
        if route is not None:
            return Match(route, parameters, "")
        return Match(next(iter(by_method.values())), parameters, ", ".join(sorted(by_method)))


def unknown_route() -> NotFound:
    """Returns the error of a path that no route has."""
    detail = "No route has this path, or no served model does its task. GET /openapi.json lists the routes."
    return NotFound("unknown_route", detail)


def unsupported_method(allow: str) -> MethodNotAllowed:
    """Returns the error of a method that a route does not support. `allow` lists the supported ones."""
    detail = "This route does not support the request method. The Allow header lists the supported ones."
    return MethodNotAllowed("method_not_allowed", detail, headers={"allow": allow})


def _first_part(path: str) -> str:
    return path[1:].partition("/")[0]
