"""The application for other ASGI servers: `uvicorn swiftlet_serve.asgi:app`.

The settings come from the environment variables SWIFTLET_…, as for `swiftlet serve`. Settings of sockets and of
the server's life have no effect: the other server has its own.
"""

from __future__ import annotations

import atexit
import os
from functools import cache
from typing import Any

from swiftlet_serve import build_info
from swiftlet_serve.http.app import Application, wrap
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.migration import live_share
from swiftlet_serve.repository.create import create_manager
from swiftlet_serve.settings import Settings, check_variables
from swiftlet_serve.telemetry.observers import Observers


def create_application(settings: Settings) -> tuple[Application, LocalRuntime]:
    """Loads the models, and returns the application with its runtime.

    Worker processes run the engines. The application's lifespan opens and closes the runtime.

    Raises:
        ArtifactError, SetupError: a model cannot be served, a setting is invalid, or traces need a package.
    """
    keys = None if settings.api_keys_file is None else ApiKeys.read(settings.api_keys_file)
    runtime = LocalRuntime.start(settings)
    observers = Observers.create(settings.traces_endpoint, build_info.version(), logs=settings.access_log)
    atexit.register(observers.close)  # not by the lifespan, which some servers run twice and others never
    gate = live_share.create_public_gate(runtime, keys, observers.all)
    return wrap(gate, runtime, create_manager(runtime)), runtime


@cache
def _application() -> Application:
    check_variables(name for name in os.environ if name.startswith("SWIFTLET_"))
    app, _ = create_application(Settings())
    return app


def __getattr__(name: str) -> Any:
    """Creates `app` when a server asks for it, since an import starts no processes."""
    if name == "app":
        return _application()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
