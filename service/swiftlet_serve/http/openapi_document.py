"""The OpenAPI document, which FastAPI writes. A server imports it when a client first asks for the document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request as FastAPIRequest
from starlette.responses import Response
from starlette.routing import BaseRoute

from swiftlet_serve import build_info
from swiftlet_serve.http.gate.request import Route

TITLE: Final = "Swiftlet"


def write(routes: Iterable[Route], schemas: Mapping[str, Any], others: Iterable[BaseRoute] = ()) -> dict[str, Any]:
    """Returns the OpenAPI document.

    Args:
        routes: routes of a gate. Those without a description are not in the document.
        schemas: what the descriptions refer to, by name.
        others: FastAPI's own routes.
    """
    described = [_described(route) for route in routes if route.describe is not None]
    document = get_openapi(title=TITLE, version=build_info.version(), routes=[*described, *others])
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    return document


def _described(route: Route) -> APIRoute:
    """Returns a route as FastAPI describes it."""
    about = {} if route.describe is None else route.describe()
    described = APIRoute(route.path, _answer, methods=[route.method], **about)
    described.description = about.get("description") or ""  # FastAPI takes the docstring of the function otherwise
    return described


async def _answer(request: FastAPIRequest) -> Response:
    """Stands for every route in FastAPI, which only reads its signature."""
    raise NotImplementedError(request.url.path)
