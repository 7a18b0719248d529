"""Searches, for each route, the request that keeps the event loop busy for longest at a stretch.

    python -m loadtest.stalls [--only PATH ...] [--tries N] [--out FILE] [--bodies FILE]

The server runs in this process with the engine `echo`, on asyncio's loop, which measures the CPU time of each of its
callbacks: other programs on the machine do not change it. The search starts from a short request with every parameter,
and changes one value at a time: the length and the characters of a text, the items of a list, a number. It keeps what
takes longer. Answered and refused requests are searched separately. FILE gets the bodies of the answered ones, which
`loadtest/beside_large.py` sends.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from loadtest.request_cost import make_small
from swiftlet_serve.http.connections.listener import Listener, bind
from swiftlet_serve.http.connections.port import Port
from swiftlet_serve.http.gates import create_gate
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.settings import Settings

REPEATS: Final = 3  # of a request that seems to take longest: its fastest run counts
TEXTS: Final = (
    "a fine film. ",
    "a",
    "a,",
    "한국어 ",
    "한",
    "é",
    "\U0001f469\u200d\U0001f467",
    "\u0001",
    '"\\',
    "[MASK] ",
    "9",
    "\U00020000",
)
CHARACTERS: Final = (1, 30, 300, 1000, 4000, 30_000, 100_000, 1_000_000)
ITEMS: Final = (1, 2, 16, 64, 255, 1000, 4000, 16_000)
NUMBERS: Final = (0, 1, 2, 5, 64, 100, 1000, 65_536)

MODELS: Final = ("albert-sst2", "albert-qa", "albert-fill-mask", "mobilebert-embed")
TEXT: Final = "A fine film."
PASSAGES: Final = [TEXT, "A dull one."]
TENSOR: Final = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
SEEDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "/classify": {"inputs": [TEXT], "parameters": {"top_k": 2}, "partial": False},
    "/embed": {"inputs": [TEXT], "partial": False},
    "/entities": {"inputs": [TEXT], "parameters": {"aggregation_strategy": "simple", "stride": 2}},
    "/fill-mask": {"inputs": ["A [MASK] film."], "parameters": {"top_k": 5, "targets": ["fine"]}},
    "/qa": {"inputs": {"question": "What?", "context": TEXT}, "parameters": {"top_k": 2, "doc_stride": 64}},
    "/rerank": {"inputs": {"query": "What?", "texts": PASSAGES}, "parameters": {"top_n": 2, "return_documents": True}},
    "/score": {"inputs": [TEXT], "parameters": {"return_tokens": True}},
    "/zero-shot": {"inputs": [TEXT], "parameters": {"candidate_labels": ["good", "bad"], "multi_label": True}},
    "/batch": {"requests": [{"task": "classify", "inputs": TEXT}, {"task": "embed", "inputs": TEXT}]},
    "/v1/embeddings": {"model": "mobilebert-embed", "input": [TEXT], "encoding_format": "float"},
    "/v2/embed": {
        "model": "mobilebert-embed",
        "texts": [TEXT],
        "input_type": "search_query",
        "embedding_types": ["float", "int8", "ubinary"],
    },
    "/v2/rerank": {"model": "mobilebert-embed", "query": "What?", "documents": PASSAGES, "top_n": 2},
    "/v1/decisions": {
        "model": "mobilebert-embed",
        "input": TEXT,
        "questions": [
            {"type": "predicate", "instructions": "It is praise."},
            {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]},
        ],
    },
    "/v1/systemone": {
        "model": "mobilebert-embed",
        "state": {"text": TEXT},
        "questions": {"q": {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}}},
    },
    "/models/mobilebert-embed": {"inputs": [TEXT]},
    "/v1/models/albert-sst2:predict": {"instances": [TEXT]},
    "/v2/models/albert-sst2/infer": {"inputs": [TENSOR], "parameters": {}},
    "/v1/classify": {"model": "albert-sst2", "input": [TEXT]},
    "/predict": {"inputs": [[TEXT]], "truncate": False},
    "/embed_all": {"inputs": [TEXT]},
    "/tokenize": {"inputs": [TEXT], "add_special_tokens": True},
    "/decode": {"ids": [[2, 3]], "skip_special_tokens": True},
    "/vertex": {"instances": [TEXT]},
    "/invocations": {"inputs": [TEXT], "parameters": {"top_k": 2}},
    "/similarity": {"inputs": {"source_sentence": TEXT, "sentences": PASSAGES}},
}


class Stretches:
    """Measures the CPU time of the callbacks of asyncio's loop. Each longest one counts until it is taken."""

    def __init__(self) -> None:
        self._longest_ns = 0
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            before = time.thread_time_ns()
            run(handle)
            self._longest_ns = max(self._longest_ns, time.thread_time_ns() - before)

        asyncio.Handle._run = timed  # type: ignore[assignment,method-assign]

    def take_ms(self) -> float:
        """Returns the longest CPU time since the last call, in milliseconds."""
        longest, self._longest_ns = self._longest_ns, 0
        return longest / 1e6


class Found(NamedTuple):
    """The request that kept the loop busy for longest."""

    ms: float
    body: Any
    status: int


class Search:
    """Searches the worst request of a route."""

    def __init__(self, send: Callable[[str, bytes], tuple[float, int]], path: str, max_bytes: int) -> None:
        self._send = send
        self._path = path
        self._max_bytes = max_bytes
        self._random = random.Random(path)  # a search that repeats itself

    def run(self, tries: int) -> Mapping[bool, Found]:
        """Returns the worst request that is answered, under True, and the worst one that is refused."""
        worst = {True: Found(0, SEEDS[self._path], 0), False: Found(0, SEEDS[self._path], 0)}
        for number in range(tries):
            start = worst[bool(number % 4)].body
            body = self._changed(start) if number else start
            data = _dump(body)
            ms, status = self._send(self._path, data)
            answered = status == 200
            if ms > worst[answered].ms:
                ms = min(ms, *(self._send(self._path, data)[0] for _ in range(REPEATS - 1)))
            if ms > worst[answered].ms:
                worst[answered] = Found(ms, body, status)
        return worst

    def _changed(self, body: Any) -> Any:
        """Returns a copy of a body with one to three values changed, within the size that the server reads."""
        for _ in range(self._random.choice((1, 1, 2, 3))):
            changed = json.loads(_dump(body))
            holder, key = self._random.choice(list(_places(changed)))
            holder[key] = self._other(holder[key], self._max_bytes - len(_dump(body)))
            if len(_dump(changed)) <= self._max_bytes:
                body = changed
        return body

    def _other(self, value: Any, room: int) -> Any:
        choose = self._random.choice
        if isinstance(value, bool):
            return not value
        if isinstance(value, str):
            text, size = choose(TEXTS), choose(CHARACTERS)
            return (text * (size // len(text) + 1))[:size]
        if isinstance(value, int):
            return choose(NUMBERS)
        if not value:
            return value
        last = list(value)[-1] if isinstance(value, dict) else -1
        repeated = [value[last]] if isinstance(value, dict) else value
        count = min(choose(ITEMS), room // max(len(_dump(one)) for one in repeated) + 1)
        if isinstance(value, dict):
            return value | {f"{last} {number}": value[last] for number in range(count)}
        return [value[number % len(value)] for number in range(count)]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each list or object with each of its keys. Of a long one, only the first."""
    keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys[:4]:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _dump(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def describe(value: Any) -> str:
    """Returns the sizes of a body's values, without its texts."""
    if isinstance(value, str):
        return f"{len(value)} × {value[:1]!r}" if len(value) > len(TEXT) else "text"
    if isinstance(value, dict):
        shown = [f"{key}: {describe(value[key])}" for key in list(value)[:4]]
        return f"{{{', '.join(shown + [f'{len(value)} fields'] * (len(value) > 4))}}}"
    if isinstance(value, list):
        return f"{len(value)} of [{describe(value[0])}]" if value else "[]"
    return str(value)


async def _measure(settings: Settings, paths: Sequence[str], tries: int) -> Mapping[str, Mapping[bool, Found]]:
    """Returns what each search finds, with a server in this event loop."""
    runtime = LocalRuntime.begin(settings)
    runtime.wait()
    port = Port(create_gate(runtime), Listener(bind(settings.host, settings.port)), settings)
    await runtime.open()
    await port.serve()
    stretches = Stretches()

    def send(path: str, body: bytes) -> tuple[float, int]:
        client = http.client.HTTPConnection(urlsplit(port.url).netloc)
        stretches.take_ms()
        client.request("POST", path, body, {"Content-Type": "application/json"})
        response = client.getresponse()
        response.read()
        client.close()
        return stretches.take_ms(), response.status

    found = {}
    for path in paths:
        found[path] = await asyncio.to_thread(Search(send, path, settings.max_body_bytes).run, tries)
        print(row(path, found[path]), flush=True)
    await port.close()
    await runtime.close()
    return found


def row(path: str, found: Mapping[bool, Found]) -> str:
    """Returns a row of the table."""
    cells = [
        f"{each.ms:.1f} | {each.status}, {len(_dump(each.body))} bytes: {describe(each.body)}"
        for each in found.values()
    ]
    return f"| `{path}` | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(SEEDS), choices=list(SEEDS), metavar="PATH")
    parser.add_argument("--tries", type=int, default=200, help="Requests for each route. Default: 200.")
    parser.add_argument("--out", type=Path, help="File for the table.")
    parser.add_argument("--bodies", type=Path, help="File for the bodies that were answered, in JSON by route.")
    arguments = parser.parse_args()
    lines = [
        f"{current_environment('tokenizers').description()} Echo engine, {arguments.tries} requests of each route.\n",
        "| route | answered: ms | request | refused: ms | request |",
        "|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as made:
        small = [make_small(task, Path(made)) for task in ("entities", "score") if f"/{task}" in arguments.only]
        settings = Settings(models=(*MODELS, *small), engine="echo", port=0, log_level="error")
        found = asyncio.run(_measure(settings, arguments.only, arguments.tries))
    if arguments.bodies:
        bodies = {path: each[True].body for path, each in found.items() if each[True].status}
        arguments.bodies.write_bytes(_dump(bodies))
    if arguments.out:
        lines += [row(path, each) for path, each in found.items()]
        arguments.out.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
