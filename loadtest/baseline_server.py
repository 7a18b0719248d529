"""How a server starts that others are compared with: uvicorn as FastAPI's own documents run it, on any free port."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI


def serve(app: FastAPI) -> None:
    """Prints its address once whoever calls there waits and is answered, and serves until it is ended."""
    config = uvicorn.Config(app, port=0, log_level="warning", loop="uvloop", http="httptools")
    listener = config.bind_socket()
    listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listener])
