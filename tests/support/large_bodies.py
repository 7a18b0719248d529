"""Large bodies for every route of tasks and dialects, and the time that the event loop needs for each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from swiftlet_serve.http.app import Application
from swiftlet_serve.http.gate.request import Head, Request
from tests.support.hostile import Raw, dump
from tests.support.hostile_dialects import BODIES as DIALECT_BODIES
from tests.support.hostile_dialects import TEXTS, places

SIZE: Final = 1 << 20
ROOM: Final = SIZE - 4096  # of one value
PAIR: Final = {"text": TEXTS[0], "text_pair": TEXTS[1]}
SAMPLE: Final = {"question": "who?", "context": TEXTS[1]}
BODIES: Final[dict[str, Any]] = DIALECT_BODIES | {
    "/classify  ": {"inputs": [TEXTS[0], PAIR], "parameters": {"top_k": 2}, "model": "classify", "options": {}},
    "/qa": {"inputs": [SAMPLE, SAMPLE], "parameters": {"top_k": 2}},
    "/qa ": {"inputs": {"question": TEXTS, "context": TEXTS}},
    "/fill-mask": {"inputs": ["a [MASK]"], "parameters": {"targets": TEXTS}},
    "/entities": {"inputs": TEXTS, "parameters": {"stride": 2, "ignore_labels": ["O"]}},
    "/score": {"inputs": [TEXTS[0], {"prompt": "a", "continuation": " b"}], "parameters": {"return_tokens": True}},
    "/embed  ": {"inputs": TEXTS, "parameters": {"encoding_format": "base64"}},
    "/rerank  ": {"inputs": {"query": "a", "texts": TEXTS}, "parameters": {"return_documents": True}},
    "/zero-shot": {"inputs": TEXTS, "parameters": {"candidate_labels": TEXTS, "hypothesis_template": "{}"}},
    "/v1/embeddings ": {"model": "embed", "input": [[1, 2], [3]]},
}
"""A valid body for each route. Spaces after a path make other keys."""

ITEMS: Final = (
    '""', '"a"', "1", "-1", "1.5", "null", "true", "[]", "{}", "[[]]", "[1]", '["a"]', '["a","b"]', '{"a":1}',
    '{"text":1}', '{"text":"a"}', '{"type":"choice"}', '{"name":"a","shape":[1],"datatype":"BYTES","data":["a"]}',
    "9" * 40, "9" * 4000, "1e400",
)  # fmt: skip
CHARACTERS: Final = ("a", ",", "é", "a ", "\\\\", '\\"', "\\u00e9", "\\ud83d\\ude00", "[MASK]", "\\n", "{}", "]", "1,")


class LargeBody(NamedTuple):
    """A body, and what it holds in words."""

    path: str
    title: str
    data: bytes


def large_bodies(share: float, counts: tuple[int, ...]) -> Iterator[LargeBody]:
    """Yields a share of all large bodies: each valid body with one of its values replaced by very many values.

    Args:
        share: of all bodies, from 0 to 1.
        counts: the numbers of items to put in. As many as fit in `SIZE` come as well.
    """
    pick = random.Random(0)
    for path, body in BODIES.items():
        for place in [(), *places(body)]:
            for title, make in _values(counts):
                if pick.random() < share:
                    data = dump(_replaced(body, place, Raw(make()))).encode()[:SIZE]
                    yield LargeBody(path.strip(), f"{'/'.join(map(str, place)) or 'root'}: {title}", data)


def _values(counts: tuple[int, ...]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields values in words, and functions that make them."""
    for item in ITEMS:
        name = item if len(item) < 40 else f"{len(item)} digits"
        for count in {*counts, ROOM}:
            items = min(count, ROOM // (len(item) + 1))
            yield f"list of {items} x {name}", partial(_list, [item], items)
            yield f"list of {items} x {name}, then of {{}}", partial(_list, [item], items, "{}")
            fields = min(count, ROOM // (len(item) + 9))
            yield f"object of {fields} x {name}", partial(_object, item, fields)
    for one in CHARACTERS:
        yield f"string of {one}", partial(_string, one)
        yield f"list in a string of {one}", partial(_string, one, "[", "]")
        yield f"64 strings of {one}", partial(_strings, one, 64)
        yield f"long key of {one}", partial("{{{}: 1}}".format, _string(one))


def _list(items: list[str], count: int, last: str = "1") -> str:
    return f"[{','.join([*(items * count), last])}]"


def _object(item: str, count: int) -> str:
    return "{" + ",".join([f'"k{i}":{item}' for i in range(count)]) + "}"


def _string(one: str, before: str = "", after: str = "", room: int = ROOM) -> str:
    return f'"{before}{one * (room // len(one.encode()))}{after}"'


def _strings(one: str, count: int) -> str:
    return _list([_string(one, room=ROOM // count - 3)], count, '""')


def _replaced(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Returns a body with another value at one place."""
    if not place:
        return value
    key, *rest = place
    inner = _replaced(body[key], tuple(rest), value)
    return body | {key: inner} if isinstance(body, dict) else [*body[:key], inner, *body[key + 1 :]]


async def loop_seconds(app: Application, large: LargeBody) -> tuple[float, int]:
    """Answers a request as the server does, on this event loop. Returns its thread's CPU time, and the status."""
    headers = [(b"content-type", b"application/json"), (b"x-request-timeout-ms", b"600000")]
    request = app.gate.begin(Head("POST", large.path, headers, "::1", time.monotonic(), has_whole_body=True))
    assert isinstance(request, Request), large.path
    request.receive(large.data)
    started = time.thread_time()
    response = await app.gate.answer(request)
    seconds = time.thread_time() - started
    assert response is not None
    return seconds, response.status_code
