"""The routes of the tasks, for requests that the server runs without the ASGI application.

FastAPI, Starlette and uvicorn's implementation of ASGI took a fifth of the server's CPU time for a short request. The
application has the same routes, with the same endpoints: they answer the requests that `TaskRoutes.find` leaves to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from swiftlet_serve.service.http.request_tracker import RequestTracker
from swiftlet_serve.service.http.task_endpoint import TaskEndpoint

JSON_TYPES: Final = frozenset(
    {b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8"}
)
"""The usual values of Content-Type. The application reads all other forms, and rejects what is not JSON."""


class TaskRoutes:
    """Finds the endpoint of a request."""

    def __init__(self, tracker: RequestTracker, endpoints: Mapping[str, TaskEndpoint], max_body_bytes: int) -> None:
        """Creates the routes.

        Args:
            tracker: finishes the records of the requests.
            endpoints: the endpoint of each path.
            max_body_bytes: the maximum size of a body.
        """
        self.tracker = tracker
        self._endpoints = endpoints
        self._max_body_bytes = max_body_bytes

    def find(self, scope: Scope, body_bytes: int | None) -> TaskEndpoint | None:
        """Returns the endpoint of an ordinary request to a task. Returns None if the application must run the request.

        An ordinary request was admitted by the tracker and has an uncompressed JSON body of acceptable size.

        Args:
            scope: the request's ASGI scope.
            body_bytes: the size of its body; None if it is not known yet.
        """
        if "context" not in scope["state"] or body_bytes is None or body_bytes > self._max_body_bytes:
            return None
        for name, value in scope["headers"]:
            if name == b"content-encoding" or (name == b"content-type" and value.lower() not in JSON_TYPES):
                return None
        return self._endpoints.get(scope["path"])
