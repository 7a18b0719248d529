"""A request and its response on one connection."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.responses import Response

from swiftlet_serve.http.connections.flow_control import FlowControl
from swiftlet_serve.http.gate.gate import Gate
from swiftlet_serve.http.gate.request import Request


class ExchangeConnection(Protocol):
    """The part of a connection that an exchange needs."""

    flow: FlowControl

    def send_response(self, response: Response) -> None: ...


class Exchange:
    """A request that the gate has let in. It runs as an asyncio task once its body is complete."""

    def __init__(
        self, connection: ExchangeConnection, gate: Gate, request: Request, tasks: set[asyncio.Task[None]]
    ) -> None:
        """Creates the exchange. `tasks` holds the asyncio task while it runs."""
        self.request = request
        self._connection = connection
        self._gate = gate
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Runs the request."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    def disconnect(self) -> None:
        """Notes that no response can be sent any more."""
        if self.request.is_disconnected:
            return
        self.request.is_disconnected = True
        if self._task is None:
            self._gate.abandon(self.request)
        else:
            self._task.cancel()

    async def _run(self) -> None:
        response = await self._gate.answer(self.request)
        flow = self._connection.flow
        if flow.is_write_paused:
            await flow.drain()
        if response is not None and not self.request.is_disconnected:
            self._connection.send_response(response)
