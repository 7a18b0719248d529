"""One load: what became of each of its requests, and what that comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.verdict import SHARE, Run
from swiftlet_serve.service.percentile import percentile

BUSY: Final = 0.9  # of a core: a generator that takes more has none left
SLICES: Final = 10


@dataclass(frozen=True, slots=True)
class Record:
    """One request, as its client saw it; times are those of `time.monotonic()`."""

    path: str
    due: float
    sent: float
    ended: float
    status: int  # of the last attempt; 0 where the connection was lost, -1 where the answer was to something else
    attempts: int

    @property
    def took(self) -> float:
        """Seconds since it was due; for ever where it was not answered."""
        return self.ended - self.due if self.status == 200 else math.inf

    @property
    def late(self) -> float:
        """Seconds that the generator was behind."""
        return self.sent - self.due


@dataclass(frozen=True)
class Level:
    """What became of a load. Times are in milliseconds, and a p99 is infinite where more than 1 % were not answered."""

    rate: float  # that was asked for, in requests a second
    offered: float  # that came of it
    seconds: float
    p50_ms: float
    p99_ms: float
    p99_by_route: dict[str, float]
    slices: list[float]  # p99 of each tenth of the time
    share: float  # of bad requests
    statuses: dict[str, int]  # how the requests ended
    again: int  # attempts beyond the first
    late_ms: float  # by how much the generator was behind, at the 99th percentile
    share_sent: float  # of bad requests, had it been in time
    core: float  # the share of a core that it took
    run: Run

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.statuses.items() if status != "200")

    @property
    def generator_bound(self) -> bool:
        """Whether this says nothing of the server: it was not asked as it should have been."""
        return self.core > BUSY or self.share > SHARE >= self.share_sent


def bound(levels: Sequence[Level], found: float) -> bool:
    """Whether the rates above the one found failed for the generator's sake: the server's limit may then be higher."""
    above = [level for level in levels if level.rate > found and level.share > SHARE]
    return bool(above) and all(level.generator_bound for level in above)


def tell(
    records: Sequence[Record], started: float, seconds: float, rate: float, target_ms: float, core: float = 0.0
) -> Level:
    """What the records of a load of so many seconds come to; there is at least one."""
    target = target_ms / 1000

    def slot(record: Record, count: int) -> int:
        return min(count - 1, int((record.due - started) / seconds * count))

    def p99(some: Sequence[Record]) -> float:
        return 1000 * percentile([record.took for record in some], 1 - SHARE)

    whole = math.ceil(seconds)
    asked, bad = [0] * whole, [0] * whole
    for record in records:
        asked[slot(record, whole)] += 1
        bad[slot(record, whole)] += record.took > target
    return Level(
        rate,
        len(records) / seconds,
        seconds,
        1000 * percentile([record.took for record in records], 0.5),
        p99(records),
        {
            path: p99([record for record in records if record.path == path])
            for path in sorted({record.path for record in records})
        },
        [p99([record for record in records if slot(record, SLICES) == tenth]) for tenth in range(SLICES)],
        sum(bad) / len(records),
        {
            str(status): sum(record.status == status for record in records)
            for status in sorted({record.status for record in records})
        },
        sum(record.attempts - 1 for record in records),
        1000 * percentile([record.late for record in records], 1 - SHARE),
        sum(record.took - record.late > target for record in records) / len(records),
        core,
        Run(rate, tuple(asked), tuple(bad)),
    )
