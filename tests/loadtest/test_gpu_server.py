"""What the measurement of a server on a GPU counts as a fault."""

import asyncio
import json

import pytest

from loadtest.gpu_server import Share, Traffic, send_share
from loadtest.workload import Body
from tests.loadtest.servers import QuietHandler, answering

RIGHT = [{"label": "v2-good", "score": 0.9}, {"label": "v2-bad", "score": 0.1}]


def handler(*answers):
    """Returns a handler that gives these answers in turn, and then the last one: a status, or scores by label."""
    remaining = list(answers)

    class Handler(QuietHandler):
        def do_POST(self):  # noqa: N802  # the name that the base class calls
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            body = b"{}" if isinstance(answer, int) else json.dumps([answer]).encode()
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Model-Version", "2")
            self.end_headers()
            self.wfile.write(body)

    return Handler


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (RIGHT, "right"),
        (RIGHT[::-1], "right"),
        ([{"label": "v2-good", "score": 0.2}, {"label": "v2-bad", "score": 0.8}], "wrong"),
        ([{"label": "v1-good", "score": 0.9}, {"label": "v2-bad", "score": 0.1}], "wrong"),
        (RIGHT[:1], "wrong"),
        (503, "status 503"),
    ],
)
def test_traffic_knows_a_wrong_answer(answer, counted):
    async def run(url):
        traffic = Traffic(url, [Body("/classify", b"{}")], callers=2)
        await traffic.learn()
        counts, p99_ms = await traffic.run(0.05)
        traffic.client.close()
        return counts, p99_ms

    with answering(handler(RIGHT, answer)) as url:
        counts, p99_ms = asyncio.run(run(url))

    assert counts.keys() == {counted}
    assert 0 < p99_ms < 60_000


def test_short_and_long_bodies_of_an_open_loop_are_apart():
    bodies = [Body("/classify", json.dumps({"inputs": "x" * length}).encode()) for length in (3, 900)]
    with answering(handler(RIGHT)) as url:
        groups, _ = send_share(Share(url, bodies, 0.0, seconds=0.2, rate=200.0, callers=0, seed=1))

    assert len(groups) == 2
    assert {result.status for group in groups for result in group} == {200}
