"""The report of a benchmark."""

from __future__ import annotations

import json
from dataclasses import replace

from swiftlet_serve.benchmark import report
from swiftlet_serve.benchmark.bench import Benchmark, Memory, Scaling
from swiftlet_serve.benchmark.measure import Interval, Result
from swiftlet_serve.offline.environment import current_environment

SETTING = current_environment()


def benchmark(**changes):
    stock_rounds = (0.006, 0.006, 0.006, 0.006, 0.008, 0.010)
    results = (
        Result("1×16", "native", "native (kernel)", 2, 4_000_000, (0.002,) * 6, 1.5, 0.0123),
        Result("1×16", "ort_stock", "stock", 2, 4_000_000, stock_rounds, 6.5, None),
        Result("1×16", "torch", "torch fp32", 2, 4_000_000, (0.02,) * 6, 20.5, 0.0),
    )
    whole = Benchmark(
        SETTING,
        "kernel",
        4e9,
        {"openvino": "openvino is not installed"},
        "texts",
        results,
        (Memory("net", "native", 3 << 20, 7 << 20),),
        (Scaling("1×16", "native", Interval(1.97, 1.95, 1.99)),),
        (
            Result("1×384", "native", "native (kernel)", 1, 4_000_000, (0.002,) * 6, 2.0, 0.0123),
            Result("1×384", "ort_stock", "stock", 1, 4_000_000, stock_rounds, 6.0, None),
        ),
    )
    return replace(whole, **changes)


def cells(text, *start):
    """Returns the cells of the first row that begins with `start`."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    return next(row for row in rows if row[: len(start)] == list(start))


def test_tables_show_the_measurements():
    text = report.text(benchmark())

    assert cells(text, "1×16", "native (kernel)")[2:] == ["1,000 (1,000 to 1,000)", "1.50", "50%", "1.2%", "–"]
    assert cells(text, "1×16", "stock")[2:] == ["333 (200 to 333)", "6.50", "17%", "–", "3.00× (3.00 to 5.00)"]
    assert cells(text, "1×16", "2") == ["1×16", "2", "6", "stock", "3.00× (3.00 to 5.00)"]
    assert cells(text, "1×16", "native") == ["1×16", "native", "1.97× (1.95 to 1.99)"]
    assert cells(text, "1×384", "stock")[2:] == ["6.00 (6.00 to 10.00)", "3.00× (3.00 to 5.00)"]
    assert cells(text, "net", "native") == ["net", "native", "3.0", "7.0"]
    assert "openvino is left out: openvino is not installed." in text


def test_tables_without_native_compare_with_the_first_engine():
    text = report.text(benchmark(results=benchmark().results[1:], peak=None, kernel=None))

    assert cells(text, "1×16", "stock")[4:] == ["–", "–", "–"]
    assert cells(text, "1×16", "2")[3:] == ["torch fp32", "3.33× (2.00 to 3.33)"]


def test_write_makes_tables_data_and_a_picture(tmp_path):
    markdown, data, picture = report.write(benchmark(), tmp_path / "out")

    assert report.text(benchmark()) in markdown.read_text("utf-8")
    assert json.loads(data.read_text("utf-8"))["results"][1]["rounds"][-1] == 0.01
    assert picture.read_bytes().startswith(b"\x89PNG")
