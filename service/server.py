"""Runs the application on uvicorn."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import uvicorn

from service.app import create_app
from service.protocol import Limits, limited
from service.runtime import Runtime
from service.settings import Settings


def serve(settings: Settings, announce: Callable[[str, Runtime], None]) -> None:
    """Loads the models, serves until SIGTERM or SIGINT, and lets the requests under way finish.

    `announce` is called with the service's URL as soon as it answers there.

    Raises:
        ArtifactError, SetupError: a model cannot be served.
    """
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    runtime = Runtime.start(settings)
    config = uvicorn.Config(
        create_app(runtime),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=limited(Limits()),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level=None if settings.log_level == "debug" else "warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
    )
    _Server(config, lambda url: announce(url, runtime)).run()


class _Server(uvicorn.Server):
    """Says when it has started, and where: the port may have been the system's choice."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce(_url(self.servers[0].sockets[0].getsockname()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._captured_signals.clear()  # or it would raise them again: being told to stop is no failure


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared with, not bound to
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
