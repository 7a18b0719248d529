"""Decides from the metrics of shadow traffic whether a candidate may take over."""

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
    candidates: dict[tuple[str, str], Shadowed] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if not sample.name.startswith("swiftlet_shadow_") or "version" not in sample.labels:
                    continue
                candidate = candidates.setdefault((sample.labels["model"], sample.labels["version"]), Shadowed())
                if sample.name == "swiftlet_shadow_requests_total":
                    candidate.results[sample.labels["result"]] += int(sample.value)
                elif sample.name == "swiftlet_shadow_score_shift_sum":
                    candidate.shift_s += sample.value
                elif sample.name == "swiftlet_shadow_score_shift_count":
                    candidate.shifts += int(sample.value)
                elif sample.name == "swiftlet_shadow_engine_seconds_sum":
                    candidate.engine_s[sample.labels["side"]] += sample.value  # type: ignore[assignment]  # a sum of seconds
    return candidates


def lines(candidates: dict[tuple[str, str], Shadowed], least: float, slowest: float) -> Iterator[str]:
    """Returns the report.

    Args:
        candidates: their shadow traffic.
        least: the least agreement of a candidate that may be promoted, from 0 to 1.
        slowest: the largest multiple of the engine's time that a candidate may take.
    """
    for (model, version), candidate in sorted(candidates.items()):
        verdict = objection(candidate, least, slowest)
        yield f"{model} {version}: {'may be promoted' if verdict is None else 'stays a candidate, because ' + verdict}"
        if candidate.compared:
            yield f"  agreement {_interval(candidate.agreement)} of {candidate.compared} answers"
        if candidate.shifts:
            yield f"  mean difference of the scores {candidate.shift_s / candidate.shifts:.4f}"
        if candidate.compared:
            yield f"  engine time {candidate.slowdown:.2f} times the served version's"
        yield f"  failed {candidate.results['failed']}, dropped {candidate.results['dropped']}"


def objection(candidate: Shadowed, least: float, slowest: float) -> str | None:
    """Returns why a candidate may not be promoted, or None if it may. Takes the limits of `lines`."""
    if candidate.compared < MIN_COMPARED:
        return f"only {candidate.compared} answers were compared, of at least {MIN_COMPARED}."
    if candidate.failures.low > MAX_FAILED:
        return f"it failed on {_interval(candidate.failures)} of the copies."
    if candidate.agreement.low < 100 * least:
        return f"its agreement may be below {100 * least:g} %."
    if candidate.slowdown > slowest:
        return f"it takes more than {slowest:g} times the engine's time."
    return None


def _interval(score: Score) -> str:
    return f"{score.value:.2f} % ({score.low:.2f} to {score.high:.2f})"
