"""The routes that run a model, for requests that the server runs without the ASGI application.

FastAPI, Starlette and uvicorn's implementation of ASGI took a fifth of the server's CPU time for a short request. The
application has the same routes, with the same endpoints: they answer the requests that `TaskRoutes.find` leaves to it.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from swiftlet_serve.http.gate.request_tracker import RequestTracker
from swiftlet_serve.http.gate.route_table import Endpoint

JSON_TYPES: Final = frozenset(
    {b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
"""The usual values of Content-Type. The application reads all other forms, and rejects what is not JSON."""


class TaskRoutes:
    """Finds the endpoint of a request."""

    def __init__(self, tracker: RequestTracker, max_body_bytes: int) -> None:
        """Creates the routes.

        Args:
            tracker: finishes the records of the requests.
            max_body_bytes: the maximum size of a body.
        """
        self.tracker = tracker
        self._max_body_bytes = max_body_bytes

    def find(self, scope: Scope, body_bytes: int | None) -> Endpoint | None:
        """Returns the endpoint of an ordinary request. Returns None if the application must run the request.

        An ordinary request was admitted by the tracker and has an uncompressed body of acceptable size and type.

        Args:
            scope: the request's ASGI scope.
            body_bytes: the size of its body; None if it is not known yet.
        """
        state = scope["state"]
        if "context" not in state or body_bytes is None or body_bytes > self._max_body_bytes:
            return None
        endpoint: Endpoint = state["match"].route.endpoint
        for name, value in scope["headers"]:
            if name == b"content-encoding":
                return None
            if name == b"content-type" and endpoint.json_only and value.lower() not in JSON_TYPES:
                return None
        return endpoint
