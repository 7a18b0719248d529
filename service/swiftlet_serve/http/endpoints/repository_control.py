"""The endpoints that load and unload models, on the admin port. Their paths and bodies are Triton's.

They need an admin key. Each returns when the change is complete, and changes nothing if it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field
from starlette.responses import JSONResponse, Response

from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.gate.request import Request, Respond, Route
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.repository.desired import Alias, Version
from swiftlet_serve.repository.manager import LoadFailed, ModelManager
from swiftlet_serve.tasks._requests import NullIsDefault

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 1 << 16
STATES: Final = {"ready": "READY", "loading": "LOADING", "unloaded": "UNAVAILABLE", "failed": "UNAVAILABLE"}
"""Triton's names of the states."""

T = TypeVar("T")


class LoadParameters(NullIsDefault):
    """The version to load. Other parameters of Triton's clients have no effect."""

    model_config = ConfigDict(extra="ignore")

    version: Annotated[Version | None, Field(description="The version. Unset: the latest.")] = None
    alias: Annotated[Alias | None, Field(description="The alias to set. Unset: it becomes the default.")] = None


class LoadRequest(NullIsDefault):
    """The body of a request to load a model. It may be empty."""

    model_config = ConfigDict(extra="ignore")

    parameters: LoadParameters = LoadParameters()


class IndexRequest(NullIsDefault):
    """The body of a request for the index. It may be empty."""

    model_config = ConfigDict(extra="ignore")

    ready: Annotated[bool, Field(description="Whether to list only versions that are in memory.")] = False


class RepositoryControl:
    """The endpoints of one server."""

    def __init__(self, manager: ModelManager, runtime: Runtime) -> None:
        self._manager = manager
        self._runtime = runtime

    def routes(self) -> list[Route]:
        """Returns the routes for the admin port."""
        paths: dict[str, Respond] = {
            "/v2/repository/index": self._index,
            "/v2/repository/models/{model}/load": self._load,
            "/v2/repository/models/{model}/unload": self._unload,
        }
        return [
            Route("POST", path, respond, reads_body=True, max_body_bytes=MAX_BODY_BYTES)
            for path, respond in paths.items()
        ]

    async def _index(self, request: Request) -> Response:
        asked = bodies.parse(IndexRequest, request.body or b"{}")
        versions = (await self._run(_call(self._manager.state))).versions
        return JSONResponse(
            [
                {
                    "name": version.model,
                    "version": str(version.version),
                    "state": STATES[version.state],
                    "reason": version.reason,
                }
                for version in versions
                if version.state == "ready" or not asked.ready
            ]
        )

    async def _load(self, request: Request) -> Response:
        asked = bodies.parse(LoadRequest, request.body or b"{}").parameters
        name = request.parameters["model"]
        try:
            await self._run(self._manager.load(name, asked.version, asked.alias))
        except LoadFailed as error:
            raise Unprocessable("model_not_loaded", str(error)) from None
        log.info("%s had a version of %s loaded", request.record.client, name)
        return JSONResponse({})

    async def _unload(self, request: Request) -> Response:
        name = request.parameters["model"]
        await self._run(self._manager.unload(name))
        log.info("%s had %s unloaded", request.record.client, name)
        return JSONResponse({})

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a change on the event loop of the runtime. It goes on if the client disconnects."""
        change = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._runtime.loop))
        return await asyncio.shield(change)  # a cancelled future would cancel the work on the other loop, too


async def _call(function: Callable[[], T]) -> T:
    return function()
