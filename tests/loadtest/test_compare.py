"""The comparison over HTTP: the workloads, and the table of the measurements."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest

from loadtest import compare
from loadtest.compare import Comparison, Point, short_p99, workload_files
from loadtest.workload import read_workload
from loadtest.wrk import WrkResult
from swiftlet_serve.offline.environment import current_environment

SETTING = replace(current_environment("numpy"), load=1.5, cores=2)
FAST, SLOW = WrkResult(100.0, 1.5, 9.0, 0), WrkResult(80.0, 2.5, 19.0, 2)
POINT = Point("W5", "swiftlet", 32, (FAST, SLOW, WrkResult(90.0, 2.0, 14.0, 1)), 12.3)


def test_workload_files_default_to_a_workload_of_each_task(tmp_path):
    files = workload_files(tmp_path / "none", (), tmp_path)

    assert {name: {body.path for body in read_workload([file])} for name, file in files.items()} == {
        "classify": {"/classify"},
        "qa": {"/qa"},
        "fill-mask": {"/fill-mask"},
    }


def test_workload_files_are_chosen_by_name(tmp_path):
    for name in ("W1", "W2"):
        (tmp_path / f"{name}.jsonl").write_text('{"inputs": "x"}\n')

    assert list(workload_files(tmp_path, (), tmp_path)) == ["W1", "W2"]
    assert workload_files(tmp_path, ("W2", "W9"), tmp_path) == {"W2": tmp_path / "W2.jsonl"}


def test_row_shows_the_median_round_and_every_failure():
    cells = [cell.strip() for cell in compare.row(POINT).strip("|").split("|")]

    assert cells == ["W5", "32", "swiftlet", "90.0 (80.0 to 100.0)", "2.0", "14.0", "12", "3"]
    assert len(cells) == compare.head().splitlines()[0].count("|") - 1


def test_write_makes_a_table_data_and_a_picture(tmp_path):
    points = (POINT, replace(POINT, workload="W1", short_p99=None))
    comparison = Comparison(SETTING, ("a", "b"), 3.0, points, {"swiftlet": 99.6})
    compare.write(comparison, tmp_path / "out")

    text = (tmp_path / "out/http.md").read_text("utf-8")
    assert compare.row(POINT) in text
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
            return await short_p99(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file, 2, 0.05)

    found = asyncio.run(run())

    assert (found is None) == (max(lengths) < compare.LONG_BYTES)
    assert found is None or 0 < found < 60_000
