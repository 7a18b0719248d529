"""A request and its response on one connection."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.responses import Response

from swiftlet_serve.http.gate.gate import Gate
from swiftlet_serve.http.gate.request import Request


class FlowControl:
    """Pauses and resumes a transport. Pausing twice has no effect, nor has resuming twice."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_read_paused = False
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    @property
    def is_write_paused(self) -> bool:
        """Whether the client must read before more is written."""
        return not self._is_writable.is_set()

    async def drain(self) -> None:
        """Waits until more may be written."""
        await self._is_writable.wait()

    def pause_reading(self) -> None:
        if not self.is_read_paused:
            self.is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_read_paused:
            self.is_read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._is_writable.set()


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
        self._is_begun = False  # whether the gate answers, which finishes the record

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
        if self._task is not None:
            self._task.cancel()
        if not self._is_begun:  # a task that is cancelled before its first step never runs
            self._gate.abandon(self.request)

    async def _run(self) -> None:
        self._is_begun = True
        response = await self._gate.answer(self.request)
        flow = self._connection.flow
        if flow.is_write_paused:
            await flow.drain()
        if response is not None and not self.request.is_disconnected:
            self._connection.send_response(response)
