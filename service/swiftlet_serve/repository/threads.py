"""Runs blocking calls to a store, which may never return: a network file system can stall."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Runs a function on its own thread. Unlike an executor's thread, it does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():  # its reader has gone
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # the function returned it
        else:
            future.set_exception(error)

    def run() -> None:
        result, raised = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            raised = error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(deliver, result, raised)

    threading.Thread(target=run, name="repository", daemon=True).start()
    return future
