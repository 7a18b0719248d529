"""The report of a load test."""

from __future__ import annotations

import json

import pytest

from loadtest import report


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
