"""Serves a baseline application with uvicorn, as FastAPI's documentation does, on a free port."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI


def serve(app: FastAPI) -> None:
    """Prints the URL once the server accepts connections, and serves until the process ends."""
    config = uvicorn.Config(app, port=0, log_level="warning", loop="uvloop", http="httptools")
    listener = config.bind_socket()
    listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listener])
