"""The report of a load test."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from loadtest import report
from loadtest.measurement import RequestResult, summarize
from tests.support.browsing import chromium, locate
from tests.support.tiers import first


def result(low: float, high: float, machine: str = "a") -> dict[str, object]:
    setting = {"date": "2026-01-01", "commit": "abc", "machine": machine}
    maximum = {"rate": (low + high) / 2, "low": low, "high": high}
    load = {"target_p99_ms": 1, "arrivals": "steady", "workload": [], "server": "ours"}
    return {"setting": setting, "maximum": maximum} | load


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(121, 140, "higher than"), (110, 130, "no different"), (50, 79, "LOWER than")]
)
def test_compare_finds_a_difference_if_the_intervals_do_not_overlap(low, high, expected):
    assert expected in report.compare(result(low, high), result(80, 120))
    assert "another machine" in report.compare(result(low, high), result(80, 120, "b"))
    assert "quotient" not in report.compare(result(low, high), result(0, 0))


@pytest.mark.parametrize("other", [{"target_p99_ms": 2}, {"server": "another"}])
def test_compare_refuses_results_of_different_loads(other):
    assert "not compared" in report.compare(result(80, 120), result(80, 120) | other)


def test_summary_leaves_out_the_measurements(tmp_path):
    measured = result(80, float("inf")) | {"measurements": [{"rate": 80}], "comparison": "This is higher."}
    report.write_summary(measured, tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))

    assert summary == result(80, 120) | {"maximum": {"rate": None, "low": 80, "high": None}}


def measured(rate: float, failed: int = 0) -> dict[str, Any]:
    """Returns the measurement of 100 requests in a second, of which the last ones failed."""
    requests = [RequestResult("/qa", n / 100, n / 100, n / 99, 200 if n < 100 - failed else 503, 1) for n in range(100)]
    found = summarize(requests, 0, 1, rate, 500)
    return asdict(found) | {"generator_limited": rate > 20}


def load_test(*rates: float) -> dict[str, Any]:
    """Returns the result of a search over rates, or of one load."""
    setting = {
        "versions": {"swiftlet": "1"},
        "load": 0.1,
        "cores": 2,
        "commit": "abc",
        "machine": "<a>",
        "date": "today",
    }
    maximum = {"rate": 15.0, "low": 10.0, "high": 20.0, "unbounded": False, "generator_limited": False}
    search = {"maximum": maximum, "complete": True} if len(rates) > 1 else {}
    found = {"server": "ours", "workload": ["default"], "target_p99_ms": 500, "at_least": None, "verdict": "holds"}
    return found | search | {"setting": setting, "measurements": [measured(rate, int(rate)) for rate in rates]}


def test_distribution_has_the_percentiles_of_every_load():
    found = [{"rate": 9.96, "percentiles_ms": {"50": 12.4, "99.9": 80.0, "100": float("inf")}}]

    assert report.distribution(found) == "| rate | p50 | p99.9 | max |\n|---|---|---|---|\n| 10.0 | 12 | 80 | inf |"


@pytest.mark.parametrize("rates", [(10.0,), (20.0, 10.0, 30.0), (100.0, 200.0)], ids=["load", "search", "all failed"])
def test_report_is_written_with_its_tables(rates, tmp_path):
    report.write(load_test(*rates), tmp_path / "out")
    page = (tmp_path / "out.html").read_text("utf-8")

    assert "<th>p99.9</th><th>max</th>" in page
    for rate in rates:
        assert page.count(f"<td>{rate:.1f}</td>") >= 2  # in the loads, and in the distribution
    assert "**" not in page
    assert "&lt;a&gt;" in page
    measurements = json.loads((tmp_path / "out.json").read_text("utf-8"))["measurements"]
    assert [bool(one["histogram"]) for one in measurements] == [rate < 100 for rate in rates]


def test_typical_load_is_the_highest_that_held():
    assert report.typical(load_test(20.0, 10.0, 30.0))["rate"] == 10.0
    assert report.typical(load_test(100.0, 200.0))["rate"] == 100.0
    assert report.typical(load_test(7.0))["rate"] == 7.0


@pytest.mark.skipif(locate() is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", first([390, 1600], 390))
def test_report_has_margins_and_does_not_scroll_sideways(width, tmp_path):
    report.write(load_test(10.0, 20.0), tmp_path / "out")
    with chromium(str(locate())) as browser:
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto((tmp_path / "out.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = [one.bounding_box() for one in page.locator("h1, h2, p, img, .scroll").all()]
    assert all(box["x"] >= 16 and box["x"] + box["width"] <= width - 16 for box in boxes)
