"""The endpoints that load and unload models, on the admin port. Their paths and bodies are those of Triton.

They need an admin key. Each returns when the change is complete, and changes nothing if it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.request_guard import authorize
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
    """What to load. Other parameters of Triton's clients have no effect."""

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

    def __init__(self, manager: ModelManager, runtime: Runtime, keys: ApiKeys) -> None:
        """`keys` are those of the people who may change what is served."""
        self._manager = manager
        self._runtime = runtime
        self._keys = keys

    def routes(self) -> list[Route]:
        """Returns the routes for the application of the admin port."""
        paths: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/v2/repository/index": self._index,
            "/v2/repository/models/{model}/load": self._load,
            "/v2/repository/models/{model}/unload": self._unload,
        }
        return [Route(path, endpoint, methods=["POST"]) for path, endpoint in paths.items()]

    async def _index(self, request: Request) -> Response:
        authorize(self._keys, request.headers)
        asked = bodies.parse(IndexRequest, await _body(request))
        versions = (await self._run(_call(self._manager.state))).versions
        return JSONResponse(
            [
                {"name": one.model, "version": str(one.version), "state": STATES[one.state], "reason": one.reason}
                for one in versions
                if one.state == "ready" or not asked.ready
            ]
        )

    async def _load(self, request: Request) -> Response:
        owner = authorize(self._keys, request.headers)
        asked = bodies.parse(LoadRequest, await _body(request)).parameters
        name = request.path_params["model"]
        try:
            await self._run(self._manager.load(name, asked.version, asked.alias))
        except LoadFailed as error:
            raise Unprocessable("model_not_loaded", str(error)) from None
        log.info("%s had a version of %s loaded", owner, name)
        return JSONResponse({})

    async def _unload(self, request: Request) -> Response:
        owner = authorize(self._keys, request.headers)
        name = request.path_params["model"]
        await self._run(self._manager.unload(name))
        log.info("%s had %s unloaded", owner, name)
        return JSONResponse({})

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a change on the event loop of the runtime. It goes on if the client disconnects."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._runtime.loop))


async def _call(function: Callable[[], T]) -> T:
    return function()


async def _body(request: Request) -> bytes:
    return await bodies.read(request, MAX_BODY_BYTES, json_only=False) or b"{}"
