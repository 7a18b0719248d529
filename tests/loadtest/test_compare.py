"""The comparison over HTTP: what is sent, and that the table holds what was measured."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from loadtest import compare
from loadtest.compare import Compared, Point, short_p99, workloads
from loadtest.generator import LENGTH
from loadtest.workload import read
from loadtest.wrk import Result
from swiftlet_serve.service.offline.environment import setting

SETTING = replace(setting("numpy"), load=1.5, cores=2)
FAST, SLOW = Result(100.0, 1.5, 9.0, 0), Result(80.0, 2.5, 19.0, 2)
POINT = Point("W5", "swiftlet", 32, (FAST, SLOW, Result(90.0, 2.0, 14.0, 1)), 12.3)


def test_without_workloads_each_task_has_texts_of_our_own(tmp_path):
    files = workloads(tmp_path / "none", (), tmp_path)

    assert {name: {body.path for body in read([file])} for name, file in files.items()} == {
        "classify": {"/classify"},
        "qa": {"/qa"},
        "fill-mask": {"/fill-mask"},
    }


def test_workloads_are_the_files_that_are_named(tmp_path):
    for name in ("W1", "W2"):
        (tmp_path / f"{name}.jsonl").write_text('{"inputs": "x"}\n')

    assert list(workloads(tmp_path, (), tmp_path)) == ["W1", "W2"]
    assert workloads(tmp_path, ("W2", "W9"), tmp_path) == {"W2": tmp_path / "W2.jsonl"}


def test_a_row_tells_the_median_round_and_every_failure():
    cells = [cell.strip() for cell in compare.row(POINT).strip("|").split("|")]

    assert cells == ["W5", "32", "swiftlet", "90.0 (80.0 to 100.0)", "2.0", "14.0", "12", "3"]
    assert len(cells) == compare.head().splitlines()[0].count("|") - 1


def test_files_hold_the_table_the_data_and_a_picture(tmp_path):
    compared = Compared(
        SETTING, ("a", "b"), 3.0, (POINT, replace(POINT, workload="W1", short_p99=None)), {"swiftlet": 99.6}
    )
    compare.write(compared, tmp_path / "out")

    told = (tmp_path / "out/http.md").read_text("utf-8")
    assert compare.row(POINT) in told
    assert "The machine had other work" in told
    assert "swiftlet 100" in told
    assert json.loads((tmp_path / "out/http.json").read_text("utf-8"))["points"][0]["short_p99"] == 12.3
    assert (tmp_path / "out/http.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("lengths", [(3, 900), (3, 5)])
def test_short_bodies_are_timed_apart_where_there_are_long_ones(lengths, tmp_path):
    """By a server that never answers long ones with success: only the short ones can have been counted."""
    file = tmp_path / "bodies.jsonl"
    file.write_text("".join(json.dumps({"inputs": "x" * length}) + "\n" for length in lengths))

    async def answer(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(LENGTH.search(head)[1])
            body = await reader.readexactly(length)
            status = b"200 OK" if len(body) <= compare.LONG_BYTES else b"503 No"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n[]")

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            return await short_p99(server.sockets[0].getsockname()[1], file, 2, 0.05)

    found = asyncio.run(run())

    assert (found is None) == (max(lengths) < compare.LONG_BYTES)
    assert found is None or 0 < found < 60_000
