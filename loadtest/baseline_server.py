"""Serves a baseline application with uvicorn, as FastAPI's documentation does, on a free port."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI


def serve(create: Callable[[], FastAPI], processes: int = 1) -> None:
    """Prints the URL once the server accepts connections, and serves until the process ends.

    Each process makes an application of its own. Several processes share the listener and divide the cores.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("fork")  # so that they inherit the listener
    cores, ready = sorted(os.sched_getaffinity(0)), context.Event()
    processes = min(processes, len(cores))
    for i in range(1, processes):
        context.Process(target=_serve, args=(create, listener, cores[i::processes], ready), daemon=True).start()
    _serve(create, listener, cores[::processes], ready, first=True)


def _serve(
    create: Callable[[], FastAPI], listener: socket.socket, cores: list[int], ready: Any, *, first: bool = False
) -> None:
    """Serves on some cores. The first process makes its application first, and files that all of them load."""
    os.sched_setaffinity(0, cores)
    if not first:
        ready.wait()
    app = create()
    if first:
        ready.set()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", loop="uvloop", http="httptools")
    uvicorn.Server(config).run([listener])
