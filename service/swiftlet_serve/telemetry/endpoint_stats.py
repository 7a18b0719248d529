"""Statistics of an existing endpoint and a candidate that are asked the same, as sums without any text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from swiftlet_models.metrics import ClusterSums, Score
from swiftlet_serve.telemetry.histogram import Histogram

BUCKETS_S: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0),
)
"""Upper bounds of the buckets of times."""
COUNTERS: Final = ("answers", "answers_with_tokens", "tokens")


@dataclass(eq=False)
class Responses:
    """The responses of one side."""

    seconds: Histogram  # of the answers that have a time
    outcomes: Counter[str] = field(default_factory=Counter)  # statuses, or what there was instead of a response
    answers: int = 0
    answers_with_tokens: int = 0  # that tell their tokens
    tokens: int = 0


@dataclass(eq=False)
class Kind:
    """The comparisons of answers of one kind."""

    agreed: ClusterSums = field(default_factory=ClusterSums)  # a request is a group
    shifts: float = 0.0  # sum of the differences of the scores of answers that agree
    taus: float = 0.0
    rankings: int = 0  # that have a tau

    @property
    def agreement(self) -> Score:
        """The share of answers that agree. Answers to one request count as one case at least."""
        return self.agreed.share

    def sums(self) -> dict[str, float]:
        """Returns all sums by name."""
        return {**asdict(self.agreed), "shifts": self.shifts, "taus": self.taus, "rankings": self.rankings}

    def add_sums(self, sums: Mapping[str, float]) -> None:
        """Adds sums as `sums` returns them. Raises KeyError if one is missing."""
        for name, value in asdict(self.agreed).items():
            setattr(self.agreed, name, value + int(sums[name]))
        self.shifts += float(sums["shifts"])
        self.taus += float(sums["taus"])
        self.rankings += int(sums["rankings"])


class EndpointStats:
    """The responses of both sides, and how their answers agree."""

    def __init__(self, bounds: Sequence[float] = BUCKETS_S) -> None:
        """`bounds` are those of the histograms of times, in seconds."""
        self.existing, self.candidate = Responses(Histogram(bounds)), Responses(Histogram(bounds))
        self.sides: Final = {"existing": self.existing, "candidate": self.candidate}
        self.kinds: defaultdict[str, Kind] = defaultdict(Kind)
        self.dropped = 0  # copies for which there was no room

    def dump(self) -> dict[str, Any]:
        """Returns the statistics as values for JSON."""
        return {
            "sides": {
                name: {"counts": side.seconds.counts, "seconds": side.seconds.sum, "outcomes": side.outcomes}
                | {counter: getattr(side, counter) for counter in COUNTERS}
                for name, side in self.sides.items()
            },
            "kinds": {name: kind.sums() for name, kind in self.kinds.items()},
            "dropped": self.dropped,
        }

    def add(self, fields: Mapping[str, Any]) -> None:
        """Adds statistics as `dump` returns them, with the same buckets.

        Raises:
            KeyError, TypeError, ValueError: `fields` are not statistics.
        """
        for name, side in self.sides.items():
            theirs = fields["sides"][name]
            side.seconds.add_counts(list(map(int, theirs["counts"])), float(theirs["seconds"]))
            side.outcomes.update(theirs["outcomes"])
            for counter in COUNTERS:
                setattr(side, counter, getattr(side, counter) + int(theirs[counter]))
        for kind, sums in fields["kinds"].items():
            self.kinds[str(kind)].add_sums(sums)
        self.dropped += int(fields["dropped"])
