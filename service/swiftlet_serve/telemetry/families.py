"""Metric families with the prefix of Swiftlet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PREFIX: Final = "swiftlet_"


def counter(name: str, help_: str, labels: Sequence[str]) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, help_, labels=labels)


def total(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_, value=value)


def histogram(name: str, help_: str, labels: Sequence[str]) -> HistogramMetricFamily:
    return HistogramMetricFamily(PREFIX + name, help_, labels=labels)


def gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_, value=value)


def by_reason(name: str, help_: str, reasons: Iterable[str], counts: dict[str, int]) -> Metric:
    family = counter(name, help_, ["reason"])
    for reason in reasons:
        family.add_metric([reason], counts.get(reason, 0))
    return family
