"""The search for requests that hold the event loop."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest.stalls import SEEDS, Search, describe, row


def texts(body: bytes) -> list[Any]:
    """Returns the texts of a request for vectors, if they are a list."""
    inputs = json.loads(body).get("inputs")
    return inputs if isinstance(inputs, list) else []


def test_search_finds_what_takes_longest_among_answered_and_refused_requests() -> None:
    sizes = list[int]()

    def send(path: str, body: bytes) -> tuple[float, int]:
        sizes.append(len(body))
        return float(len(texts(body))), 200 if len(texts(body)) <= 64 else 422

    found = Search(send, "/embed", 100_000).run(150)

    assert max(sizes) <= 100_000
    assert (found[True].ms, len(found[True].body["inputs"])) == (64, 64)
    assert found[False].status == 422
    assert found[False].ms == len(found[False].body["inputs"]) >= 1000


def test_a_slow_run_that_does_not_repeat_is_forgotten() -> None:
    times = iter([*[1.0] * 3, 1000.0, *[1.0] * 500])
    found = Search(lambda *_: (next(times), 200), "/classify", 1000).run(30)
    assert found[True].ms == 1


@pytest.mark.parametrize("path", SEEDS)
def test_table_names_sizes(path: str) -> None:
    found = Search(lambda *_: (2.0, 200), path, 1000).run(1)
    assert row(path, found).startswith(f"| `{path}` | 2.0 | 200, ")


def test_description_has_no_long_text() -> None:
    assert describe({"inputs": ["secret" * 9] * 3, "top_k": 2}) == "{inputs: 3 of [54 × 's'], top_k: 2}"
