"""A load: retries, and what counts as answered."""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser

import pytest

from loadtest.load import SOAK_S, Load, add_options, arrival_times, duration_s, load_of
from loadtest.workload import Body
from tests.loadtest.servers import QuietHandler, answering


@pytest.mark.parametrize(
    ("script", "retries", "expected"),
    [
        (["503 0", "200"], 2, (200, 2)),
        (["lost", "429 0", "200"], 2, (200, 3)),
        (["200"], 2, (200, 1)),
        (["503 0", "503 0", "502 0", "200"], 2, (502, 3)),  # no retry is left
        (["422 0", "200"], 2, (422, 1)),  # a retry would fail again
        (["503 3600", "200"], 2, (503, 1)),  # the client gives up before Retry-After
        (["wrong", "200"], 2, (-1, 1)),
    ],
    ids=str,
)
def test_load_retries_as_often_and_as_long_as_allowed(script, retries, expected):
    answered: list[str] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802  # the base class calls it
            answered.append(answer := script[len(answered)])
            self.rfile.read(int(self.headers["Content-Length"]))
            if answer == "lost":
                self.close_connection = True
                return
            status, _, retry_after = answer.partition(" ")
            body = b"{}" if status == "wrong" else b'[[{"label": "A", "score": 1.0}]]'
            self.send_response(200 if status == "wrong" else int(status))
            self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Handler) as url:
        load = Load(url, [Body("/classify", b"{}")], retries=retries, give_up_s=60)
        asyncio.run(load.send(time.monotonic()))
    (result,) = load.results

    assert (result.status, result.attempts) == expected
    assert answered == script[: expected[1]]


def test_load_counts_a_connection_that_cannot_be_opened_as_lost():
    load = Load("http://127.0.0.1:1", [Body("/classify", b"{}")], retries=0)
    asyncio.run(load.send(time.monotonic()))

    assert [result.status for result in load.results] == [0]


def options(*arguments: str):
    parser = ArgumentParser()
    add_options(parser)
    return parser.parse_args(arguments)


def test_options_describe_the_load(tmp_path):
    (tmp_path / "bodies").write_bytes(b'{"inputs": "a"}\n')
    load = load_of(
        options("--bodies", str(tmp_path / "bodies"), "--header", "A: b:c", "--retries", "5", "--give-up-s", "3"),
        "http://127.0.0.1:1/v1",
    )

    assert load.bodies == [Body("/classify", b'{"inputs": "a"}')]
    assert load.path(load.bodies[0]) == "/v1/classify"
    assert (load.headers, load.retries, load.give_up_s) == ({"A": "b:c"}, 5, 3.0)


def test_options_describe_arrivals_and_duration(tmp_path):
    (tmp_path / "trace").write_text("0\n1\n")

    assert arrival_times(options("--trace", str(tmp_path / "trace")), 1, 2, 1) == [0.0, 1.0]
    assert arrival_times(options(), 20, 1, 1) == arrival_times(options(), 20, 1, 1)
    assert duration_s(options(), 7.0) == 7.0
    assert duration_s(options("--shape", "soak"), 7.0) == SOAK_S
    assert duration_s(options("--shape", "soak", "--seconds", "2"), 7.0) == 2.0


def test_load_with_a_seed_shuffles_its_bodies():
    plain, shuffled = load_of(options(), "http://127.0.0.1:1"), load_of(options(), "http://127.0.0.1:1", seed=1)

    assert plain.bodies != shuffled.bodies
    assert sorted(body.data for body in plain.bodies) == sorted(body.data for body in shuffled.bodies)
