"""Replays a log to two endpoints, which get the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from pydantic_core import to_json

from swiftlet_serve.errors import SetupError
from swiftlet_serve.migration.answers import Answer, read
from swiftlet_serve.migration.endpoint import Endpoint, Reply
from swiftlet_serve.migration.request_log import Entry

UNKNOWN_FORM: Final = "unknown form"


class Side(NamedTuple):
    """What an endpoint answered to a request."""

    reply: Reply
    answers: Sequence[Answer] | None  # None without a response that can be read


class Pair(NamedTuple):
    """What both endpoints answered to a request."""

    entry: Entry
    existing: Side
    candidate: Side


async def replay(
    entries: Iterator[Entry],
    existing: Endpoint | None,
    candidate: Endpoint,
    concurrency: int,
    on_pair: Callable[[Pair], None],
) -> None:
    """Sends each request to the existing endpoint, and then to the candidate. Nothing is sent twice.

    Args:
        entries: the requests, which are read as they are needed.
        existing: the endpoint to leave. None: the log has its answers.
        candidate: the endpoint to compare with.
        concurrency: the requests that wait for one endpoint or the other at a time.
        on_pair: gets what both answered.

    Raises:
        SetupError: the log is invalid, or `on_pair` raised it.
    """

    async def work() -> None:
        for entry in entries:
            body = to_json(entry.body)
            first = _recorded(entry) if existing is None else await existing.ask(entry.path, body)
            second = await candidate.ask(entry.path, body)
            on_pair(pair_of(entry, first, second))

    tasks = [asyncio.ensure_future(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        for endpoint in (existing, candidate):
            if endpoint is not None:
                endpoint.close()


def pair_of(entry: Entry, existing: Reply, candidate: Reply) -> Pair:
    """Returns what both endpoints answered, given their responses."""
    return Pair(entry, _side(entry, existing), _side(entry, candidate))


def _recorded(entry: Entry) -> Reply:
    if entry.answer is None:
        raise SetupError(f"Line {entry.line} of the log has no answer. Name the endpoint with --existing.")
    return Reply("200", 0.0, entry.answer)


def _side(entry: Entry, reply: Reply) -> Side:
    if reply.content is None:
        return Side(reply, None)
    try:
        return Side(reply, read(reply.content, several=isinstance(entry.body.get("inputs"), list)))
    except ValueError:
        return Side(reply._replace(outcome=UNKNOWN_FORM), None)
