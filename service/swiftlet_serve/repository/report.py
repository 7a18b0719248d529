"""What shadow traffic says about a candidate: whether it may take over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from swiftlet_models import metrics
from swiftlet_models.metrics import Score

MIN_COMPARED: Final = 200
MAX_FAILED: Final = 0.1  # percent of the copies


@dataclass
class Shadowed:
    """The shadow traffic of one candidate, summed over servers."""

    results: Counter[str] = field(default_factory=Counter)
    shift_s: float = 0.0  # sum of the differences of scores
    shifts: int = 0
    engine_s: Counter[str] = field(default_factory=Counter)  # by side: served or candidate

    @property
    def compared(self) -> int:
        """The number of answers that were compared."""
        return self.results["agreed"] + self.results["differed"]

    @property
    def agreement(self) -> Score:
        """The share of compared answers that agree. Raises ValueError without comparisons."""
        return metrics.share(self.results["agreed"], self.compared)

    @property
    def failures(self) -> Score:
        """The share of the copies that ran and failed. Raises ValueError without comparisons."""
        return metrics.share(self.results["failed"], self.compared + self.results["failed"])

    @property
    def slowdown(self) -> float:
        """The engine's time of the candidate, as a multiple of the served version's; NaN without comparisons."""
        return self.engine_s["candidate"] / self.engine_s["served"] if self.engine_s["served"] else math.nan


def read(pages: Iterable[str]) -> dict[tuple[str, str], Shadowed]:
    """Returns the shadow traffic by model and version, from the metrics of servers in Prometheus's text format.

    Raises:
        ValueError: a page is not in this format.
    """
    found: dict[tuple[str, str], Shadowed] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if not sample.name.startswith("swiftlet_shadow_"):
                    continue
                one = found.setdefault((sample.labels["model"], sample.labels["version"]), Shadowed())
                if sample.name == "swiftlet_shadow_requests_total":
                    one.results[sample.labels["result"]] += int(sample.value)
                elif sample.name == "swiftlet_shadow_score_shift_sum":
                    one.shift_s += sample.value
                elif sample.name == "swiftlet_shadow_score_shift_count":
                    one.shifts += int(sample.value)
                elif sample.name == "swiftlet_shadow_engine_seconds_sum":
                    one.engine_s[sample.labels["side"]] += sample.value  # type: ignore[assignment]  # a sum of seconds
    return found


def lines(found: dict[tuple[str, str], Shadowed], least: float, slowest: float) -> Iterator[str]:
    """Returns the report.

    Args:
        found: the shadow traffic.
        least: agreement from which a candidate may be promoted, from 0 to 1.
        slowest: the largest multiple of the engine's time that a candidate may take.
    """
    for (model, version), one in sorted(found.items()):
        verdict = objection(one, least, slowest)
        yield f"{model} {version}: {'may be promoted' if verdict is None else 'stays a candidate, because ' + verdict}"
        if one.compared:
            yield f"  agreement {_interval(one.agreement)} of {one.compared} answers"
        if one.shifts:
            yield f"  mean difference of the scores {one.shift_s / one.shifts:.4f}"
        if one.compared:
            yield f"  engine time {one.slowdown:.2f} times that of the served version"
        yield f"  failed {one.results['failed']}, dropped {one.results['dropped']}"


def objection(one: Shadowed, least: float, slowest: float) -> str | None:
    """Returns why a candidate may not be promoted, or None if it may. The arguments are those of `lines`."""
    if one.compared < MIN_COMPARED:
        return f"only {one.compared} answers were compared, of at least {MIN_COMPARED}."
    if one.failures.low > MAX_FAILED:
        return f"it failed on {_interval(one.failures)} of the copies."
    if one.agreement.low < 100 * least:
        return f"its agreement may be below {100 * least:g} %."
    if one.slowdown > slowest:
        return f"it takes more than {slowest:g} times the engine's time."
    return None


def _interval(score: Score) -> str:
    return f"{score.value:.2f} % ({score.low:.2f} to {score.high:.2f})"
