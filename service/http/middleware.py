"""The outermost middleware: records each request and turns exceptions into problem details."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swiftlet_serve.service.http.request_tracker import RequestTracker
from swiftlet_serve.service.telemetry.request_record import RequestRecord


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
        # Our server has called `begin` before. Any other ASGI server has not.
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
        except (Exception, asyncio.CancelledError) as error:
            response = tracker.error_response(scope, error)
            if record.status is None:
                await response(scope, receive, send_and_finish)
