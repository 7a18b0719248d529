"""The middleware around the routes: records each request and turns exceptions into problem details."""

from __future__ import annotations

from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swiftlet_serve.http.gate.request_tracker import RequestTracker
from swiftlet_serve.telemetry.request_record import RequestRecord

NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
"""A header of every response: browsers must not take it for something else than it says."""


class RequestMiddleware:
    """Runs the application for admitted requests, and finishes their records."""

    def __init__(self, app: ASGIApp, tracker: RequestTracker) -> None:
        self.app = app
        self._tracker = tracker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        tracker = self._tracker
        if "received" not in scope.get("state", {}):  # another ASGI server, which has not the headers of ours
            send = _with_nosniff(send)
        # Our server has called `begin` before. Other ASGI servers have not.
        if "record" not in scope.get("state", {}) and (refusal := tracker.begin(scope)):
            await refusal(scope, receive, send)
            return
        record: RequestRecord = scope["state"]["record"]

        async def send_and_finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = list(message["headers"])
                tracker.add_headers(record, message["headers"])
                tracker.finish(record, scope, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_and_finish)
        except ClientDisconnect:
            if record.status is None:
                tracker.finish(record, scope, None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic of a library in Rust, which is no Exception
            response = tracker.error_response(scope, error)
            if record.status is None:
                await response(scope, receive, send_and_finish)


def _with_nosniff(send: Send) -> Send:
    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], NOSNIFF]
        await send(message)

    return send_with_header
