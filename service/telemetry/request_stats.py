"""What became of requests and batches, counted. `service.telemetry.prometheus` tells it to Prometheus.

The stats balance at every moment: of each model, accepted = answered + failed + cancelled + in flight. A request is
accepted once all its encodings wait for a core. One that does not get so far is refused, whoever's fault that is, and
counted under its reason; so every request is either accepted or refused.

Plain numbers, kept on the event loop only: to add one to a histogram here takes 0.3 µs, which for ten of them a request
is what keeps counting cheap; to a histogram of prometheus_client it takes six times as long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from swiftlet_serve.service.telemetry.request_record import STAGES, RequestRecord, Stage

Ending = Literal["answered", "failed", "cancelled"]
"""Of an accepted request: it was answered, with what is wrong with it too; it failed through no fault of its own
(a status of 500 or more); or its client hung up before there was an answer."""
ENDINGS: Final[tuple[Ending, ...]] = get_args(Ending)

DISCONNECTED: Final = "disconnected"
"""The reason of requests whose clients hung up before they were accepted; all other reasons are codes of errors."""

LATE: Final = "deadline_exceeded"
OVERLOADED: Final = "overloaded"

# fmt: off
REQUEST_S: Final = (
    0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0,
)
STAGE_S: Final = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)
# fmt: on
ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
RECENT: Final = 1000  # answers of each model that are known one by one
TOKENS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """How many values fell into each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' upper ends, which belong to them, in rising order; the last bucket has none."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def copy(self) -> Histogram:
        other = Histogram(self.bounds)
        other.counts, other.sum = self.counts.copy(), self.sum
        return other


@dataclass(eq=False, slots=True)
class ModelStats:
    """One model's."""

    task: str
    accepted: int
    in_flight: int
    seconds: dict[Ending, Histogram]
    stages: dict[Stage, Histogram]
    rows: Histogram  # of batches
    tokens: Histogram  # of batches, without padding
    padding: int  # tokens that batches were padded with
    recent: deque[tuple[float, float]]  # of the last answers each one's moment of `time.monotonic()`, and its seconds

    @classmethod
    def of(cls, task: str) -> ModelStats:
        """An empty one."""
        seconds: dict[Ending, Histogram] = {ending: Histogram(REQUEST_S) for ending in ENDINGS}
        stages: dict[Stage, Histogram] = {stage: Histogram(STAGE_S) for stage in STAGES}
        return cls(task, 0, 0, seconds, stages, Histogram(ROWS), Histogram(TOKENS), 0, deque(maxlen=RECENT))

    def copy(self) -> ModelStats:
        return replace(
            self,
            seconds={ending: histogram.copy() for ending, histogram in self.seconds.items()},
            stages={stage: histogram.copy() for stage, histogram in self.stages.items()},
            rows=self.rows.copy(),
            tokens=self.tokens.copy(),
            recent=self.recent.copy(),
        )


class RequestStats:
    """Those of one server."""

    def __init__(self, tasks: Mapping[str, str]) -> None:
        """`tasks` are those of the models served, by the models' names: no other name is ever counted under."""
        self.accounts = {model: ModelStats.of(task) for model, task in tasks.items()}
        self.refusals: Counter[str] = Counter()  # by reason
        self.failures: Counter[str] = Counter()  # accepted and not answered, by the code of the error
        self.bulk_shed = 0  # refusals for overload, of requests that can wait
        self.late = 0  # requests, accepted or not, that were told that their deadline had passed
        # What those had allowed who brought a deadline and were late, or shed although they cannot wait.
        self.unmet = {reason: Histogram(REQUEST_S) for reason in (LATE, OVERLOADED)}

    def accept(self, record: RequestRecord) -> None:
        account = self.accounts[record.model]
        account.accepted += 1
        account.in_flight += 1

    def finish(self, record: RequestRecord) -> None:
        """Takes in what became of a request."""
        shed = record.code == OVERLOADED and not record.accepted
        self.late += record.code == LATE
        self.bulk_shed += shed and record.bulk
        if record.allowed_s is not None and (record.code == LATE or (shed and not record.bulk)):
            self.unmet[record.code].add(record.allowed_s)
        if not record.accepted:
            if record.status is None or record.code:
                self.refuse(record.code or DISCONNECTED)
            return
        account = self.accounts[record.model]
        end = ending(record)
        account.in_flight -= 1
        account.seconds[end].add(record.seconds)
        for stage, (began, ended) in record.stages.items():
            account.stages[stage].add(ended - began)
        if end == "answered":
            account.recent.append((record.ended, record.seconds))
        elif end == "failed":
            self.failures[record.code] += 1

    def refuse(self, reason: str) -> None:
        """Takes in a request that ended before it was accepted."""
        self.refusals[reason] += 1

    def ran(self, model: str, rows: int, tokens: int, padding: int) -> None:
        """Takes in a call to the engine: the batch's rows, their tokens, and how many they were padded with."""
        if (account := self.accounts.get(model)) is not None:
            account.rows.add(rows)
            account.tokens.add(tokens)
            account.padding += padding

    def copy(self) -> RequestStats:
        """The stats as they are now."""
        other = RequestStats({})
        other.accounts = {model: account.copy() for model, account in self.accounts.items()}
        other.refusals, other.failures = self.refusals.copy(), self.failures.copy()
        other.bulk_shed, other.late = self.bulk_shed, self.late
        other.unmet = {reason: histogram.copy() for reason, histogram in self.unmet.items()}
        return other


def ending(record: RequestRecord) -> Ending:
    """What became of an accepted request."""
    if record.status is None:
        return "cancelled"
    return "failed" if record.status >= 500 else "answered"
