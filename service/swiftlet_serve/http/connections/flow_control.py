"""Flow control of a connection: when it may read, and when its client has read enough for the next response."""

from __future__ import annotations

import asyncio


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
