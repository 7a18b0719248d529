"""Statistics of shadow traffic: compares a candidate's answers with the served ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from swiftlet_serve.telemetry.histogram import Histogram
from swiftlet_serve.telemetry.request_stats import STAGE_BUCKETS_S

Result = Literal["agreed", "differed", "failed", "dropped"]
"""`failed`: the candidate had an error. `dropped`: the server was busy."""
RESULTS: Final[tuple[Result, ...]] = ("agreed", "differed", "failed", "dropped")
SHIFT_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class Comparison(Protocol):
    """The result of comparing two answers."""

    @property
    def agrees(self) -> bool: ...
    @property
    def shift(self) -> float: ...


@dataclass(eq=False)
class ShadowStats:
    """Statistics of one candidate."""

    results: Counter[Result] = field(default_factory=Counter)
    shifts: Histogram = field(default_factory=lambda: Histogram(SHIFT_BUCKETS))  # of the scores, where both agree
    served_s: Histogram = field(default_factory=lambda: Histogram(STAGE_BUCKETS_S))  # the engine's time for the request
    candidate_s: Histogram = field(default_factory=lambda: Histogram(STAGE_BUCKETS_S))  # and for its copy

    def add(self, comparison: Comparison, served_s: float, candidate_s: float) -> None:
        """Counts a comparison, and the engine time of both answers."""
        self.results["agreed" if comparison.agrees else "differed"] += 1
        if comparison.agrees:
            self.shifts.add(comparison.shift)
        self.served_s.add(served_s)
        self.candidate_s.add(candidate_s)

    def copy(self) -> ShadowStats:
        """Returns a copy that later comparisons do not change."""
        histograms = {name: getattr(self, name).copy() for name in ("shifts", "served_s", "candidate_s")}
        return replace(self, results=self.results.copy(), **histograms)
