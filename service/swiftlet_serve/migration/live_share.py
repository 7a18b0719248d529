"""The live share: copies of a server's requests go to an existing service, whose answers are compared and dropped.

The server is the candidate. A copy is made after the request is answered, and waits in a bounded queue: nothing that
the existing service does, or fails to do, delays an answer. A copy has the path and the body of the request, and none
of its headers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from swiftlet_serve.errors import SetupError, log_exception
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.gate import Observer
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.gates import PublicGate, create_gate
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.migration.endpoint import COPY_HEADER, NO_RESPONSE, UNREADABLE, Endpoint, Reply, read_key
from swiftlet_serve.migration.replay import pair_of
from swiftlet_serve.migration.report import count
from swiftlet_serve.migration.request_log import Entry, LogWriter
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.endpoint_stats import EndpointStats

log = logging.getLogger(__name__)

MAX_WAITING: Final = 64
"""Copies that wait."""
MAX_WAITING_BYTES: Final = 1 << 22
MAX_RUNNING: Final = 8
"""Copies that wait for a response."""
MAX_BYTES: Final = 1 << 18
"""The largest body of a request, of its answer and of a response that is compared. Parsing it takes under 3 ms."""
MAX_INLINE_BYTES: Final = 1 << 14
"""The largest bodies together that are compared on the event loop."""
RANDOM: Final = random.Random()  # noqa: S311  # samples requests, and is not a secret
FAILURES: Final = (NO_RESPONSE, UNREADABLE, "401", "403")
"""Outcomes that no request causes."""


class _Copy(NamedTuple):
    """A request with what this server responded."""

    path: str
    body: bytes
    status: int
    response: bytes
    seconds: float

    @property
    def bytes(self) -> int:
        return len(self.body) + len(self.response)


class LiveShare:
    """Sends copies of a share of the requests, and counts how the answers agree."""

    def __init__(
        self, endpoint: Endpoint, paths: Sequence[str], share: float, stats: EndpointStats, writer: LogWriter | None
    ) -> None:
        """Sends nothing yet.

        Args:
            endpoint: the existing service.
            paths: of the routes whose requests are copied.
            share: of these requests, from 0 to 1.
            stats: counts the responses and comparisons.
            writer: writes the requests and what the endpoint answered; None to store no text.
        """
        self._endpoint = endpoint
        self._paths = frozenset(paths)
        self._share = share
        self._stats = stats
        self._writer = writer
        self._waiting: deque[_Copy] = deque()
        self._bytes = 0  # of the waiting copies
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_answering = True

    def offer(self, request: Request, response: Response) -> None:
        """Copies a request, or drops the copy. Returns at once."""
        if request.route.path not in self._paths or COPY_HEADER in request.headers or RANDOM.random() >= self._share:
            return
        size = max(len(request.body), len(response.body)), len(request.body) + len(response.body)
        if size[0] > MAX_BYTES or len(self._waiting) >= MAX_WAITING or self._bytes + size[1] > MAX_WAITING_BYTES:
            self._stats.dropped += 1
            return
        seconds = request.record.ended - request.record.started
        path = quote(request.head.path, safe="/:@!$&'()*+,;=~")
        if not {".", ".."}.isdisjoint(path.split("/")) or not _is_json(response):  # the path would be another one
            self._stats.dropped += 1
            return
        copy = _Copy(path, bytes(request.body), response.status_code, bytes(response.body), seconds)
        self._waiting.append(copy)
        self._bytes += copy.bytes
        if len(self._tasks) < MAX_RUNNING:
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._waiting:
            copy = self._waiting.popleft()
            self._bytes -= copy.bytes
            try:
                await self._run(copy)
            except Exception as error:
                log_exception(log, "a copied request could not be compared", error)

    async def _run(self, copy: _Copy) -> None:
        try:
            entry = Entry(path=copy.path, body=from_json(copy.body))
        except (ValueError, ValidationError):  # it is no object, so that no service can answer it
            self._stats.dropped += 1
            return
        reply = await self._endpoint.ask(copy.path, copy.body)
        self._note(reply)
        served = Reply(str(copy.status), copy.seconds, from_json(copy.response) if copy.status == 200 else None)
        if copy.bytes <= MAX_INLINE_BYTES:
            pair = pair_of(entry, reply, served)
        else:
            pair = await asyncio.to_thread(pair_of, entry, reply, served)
        count(self._stats, pair)
        if self._writer is not None and pair.existing.answers is not None:
            try:
                await asyncio.to_thread(self._writer.add, entry.model_copy(update={"answer": reply.content}))
            except OSError as error:
                log.warning("shadow_log cannot be written (%s). No more requests are stored.", error.strerror)
                self._writer.close()

    def _note(self, reply: Reply) -> None:
        """Logs when the endpoint begins to fail, and when it answers again. It may refuse what a client sends."""
        is_failing = reply.outcome in FAILURES or reply.outcome[0] in "35"
        if is_failing == self._is_answering:
            self._is_answering = not self._is_answering
            if self._is_answering:
                log.info("the service of shadow_url answers again")
            else:
                log.warning("the service of shadow_url does not answer: %s", reply.outcome)

    def close(self) -> None:
        """Drops all copies, and closes the connections."""
        self._paths = frozenset()
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        self._endpoint.close()
        if self._writer is not None:
            self._writer.close()


def _is_json(response: Response) -> bool:
    """Returns whether a response is JSON. The Open Inference Protocol may answer with bytes."""
    types = [value for name, value in response.raw_headers if name == b"content-type"]
    return not types or b"json" in types[0]


def check(settings: Settings) -> None:
    """Raises SetupError if a setting of the live share is invalid. `check_paths` checks the routes."""
    if (opened := _open(settings)) is not None:
        endpoint, writer = opened
        endpoint.close()
        if writer is not None:
            writer.close()


def _open(settings: Settings) -> tuple[Endpoint, LogWriter | None] | None:
    """Returns the existing service and the log for its answers, or None if no requests are copied.

    Raises:
        SetupError: a setting is invalid.
    """
    if settings.shadow_url is not None:
        key = read_key(settings.shadow_key_file, "")
        endpoint = Endpoint(settings.shadow_url, key, settings.shadow_timeout_ms / 1000, MAX_BYTES)
        return endpoint, None if settings.shadow_log is None else LogWriter(settings.shadow_log)
    if settings.shadow_paths or settings.shadow_key_file or settings.shadow_log:
        raise SetupError("The settings shadow_paths, shadow_key_file and shadow_log need shadow_url.")
    return None


def create_public_gate(runtime: Runtime, keys: ApiKeys | None, observers: Sequence[Observer]) -> PublicGate:
    """Creates the gate of the public port, which copies requests if the settings say so.

    Raises:
        SetupError: a setting of the live share is invalid.
    """
    settings = runtime.settings
    if (opened := _open(settings)) is None:
        return create_gate(runtime, keys, observers)
    endpoint, writer = opened
    runtime.stats.endpoint = stats = EndpointStats()
    share = LiveShare(endpoint, settings.shadow_paths, settings.shadow_share, stats, writer)
    runtime.on_close.append(share.close)
    gate = create_gate(runtime, keys, observers, share.offer)
    _check_paths(gate, settings)
    return gate


def check_paths(runtime: Runtime) -> None:
    """Checks shadow_paths for a runtime whose requests other processes read. Raises SetupError."""
    if runtime.settings.shadow_url is not None:
        _check_paths(create_gate(runtime), runtime.settings)


def _check_paths(gate: PublicGate, settings: Settings) -> None:
    routes = {route.path for route in gate.table.routes if route.runs_model}
    unknown = sorted(set(settings.shadow_paths) - routes)
    if unknown or not settings.shadow_paths:
        wrong = f"{unknown[0]} is none" if unknown else "it is empty"
        detail = "`GET /openapi.json` lists them."
        raise SetupError(f"The setting shadow_paths must name routes that run models, and {wrong}. {detail}")
