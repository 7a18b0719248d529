"""Scrapes of a server, and a timeline made of them, on which promtool evaluates the alert rules in simulated time."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtest.prometheus_server import RULES

RULE_TESTS_ENVIRONMENT = os.environ | {"GOGC": "800", "GOMAXPROCS": "1"}
"""For promtool: less garbage collection, in at most 300 MB, saves a quarter of its processor time."""
TARGET = {"job": "swiftlet", "instance": "a"}
IN_FLIGHT = "swiftlet_requests_in_flight"


@dataclass(frozen=True)
class Scrape:
    """The metrics of a server at one time."""

    time_s: float
    values: dict[str, float]  # by series: name and labels
    gauges: frozenset[str]  # the series whose value may fall

    @classmethod
    def parse(cls, text: str, time_s: float) -> Scrape:
        values, gauges = {}, set()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = _series(sample.name, sample.labels)
                values[series] = sample.value
                if family.type == "gauge":
                    gauges.add(series)
        return cls(time_s, values, frozenset(gauges))

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum over the series of a metric with these labels."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(
            value
            for series, value in self.values.items()
            if series.startswith(f"{name}{{") and all(label in series for label in wanted)
        )


@dataclass
class Timeline:
    """The values of each series, one per minute, and the alerts that are expected to fire."""

    minutes: int = 0
    fired: set[str] = field(default_factory=set)
    _values: dict[str, list[str]] = field(default_factory=dict)
    _levels: dict[str, float] = field(default_factory=dict)
    _checks: list[dict[str, Any]] = field(default_factory=list)

    def extend(self, minutes: int, before: Scrape, after: Scrape, repeats: int | None = None) -> None:
        """Continues for some minutes with the gauges of the second scrape, and with counters that grow.

        Every minute repeats the growth between the scrapes, `repeats` times. By default, the rate stays the same. The
        number is whole, so that sums over counters hold exactly.
        """
        repeats = repeats or max(1, round(60 / (after.time_s - before.time_s)))
        for series, value in after.values.items():
            start = before.values.get(series, 0.0)
            if series in after.gauges and not series.startswith(IN_FLIGHT):
                first, growth = value, 0.0
            else:  # requests in flight balance the counters, and so grow with them
                growth = repeats * (value - start)
                first = self._levels.get(series, start) + growth
            self._append(series, f"{first!r}{growth:+}x{minutes - 1}")
            self._levels[series] = first + growth * (minutes - 1)
        self._append(_series("up", {}), f"1x{minutes - 1}")
        self.minutes += minutes

    def end(self, minutes: int) -> None:
        """Continues without the server: no scrape succeeds."""
        for series in self._levels:
            self._append(series, f"stale _x{minutes - 1}")
        self._append(_series("up", {}), f"0x{minutes - 1}")
        self.minutes += minutes

    def expect_firing(self, *names: str, allowed: Collection[str] = (), within_minutes: int = 0) -> None:
        """Expects that these alerts fire now. Others must not fire within the last minutes, unless they are allowed."""
        self.fired |= set(names)
        for name in names:
            self.expect_data(f'ALERTS{{alertstate="firing",alertname="{name}"}}')
        others = "|".join(["none", *names, *allowed])
        unexpected = f'ALERTS{{alertstate="firing",alertname!~"{others}"}}'
        self._check(f"last_over_time({unexpected}[{within_minutes}m])" if within_minutes else unexpected)

    def expect_data(self, expression: str) -> None:
        """Expects that a query returns something now."""
        self._check(f"absent({expression})")

    def test(self, directory: Path) -> tuple[int, str]:
        """Returns the exit status and the output of promtool."""
        series = [{"series": name, "values": " ".join(values)} for name, values in self._values.items()]
        test = {"interval": "1m", "input_series": series, "promql_expr_test": self._checks}
        table = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
        (directory / "timeline.yml").write_text(json.dumps(table))  # JSON is YAML
        command: Sequence[str] = ("promtool", "test", "rules", str(directory / "timeline.yml"))
        done = subprocess.run(command, env=RULE_TESTS_ENVIRONMENT, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def _append(self, series: str, values: str) -> None:
        if series not in self._values:
            self._values[series] = [f"_x{self.minutes}"] if self.minutes else []
        self._values[series].append(values)

    def _check(self, expression: str) -> None:
        """Expects that a query returns nothing now."""
        self._checks.append({"expr": expression, "eval_time": f"{self.minutes - 1}m", "exp_samples": []})


def _series(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in (TARGET | labels).items())
    return f"{name}{{{pairs}}}"
