"""One load: the results of its requests, and their summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.verdict import MAX_BAD_SHARE, Run
from swiftlet_serve.telemetry.percentile import percentile

MAX_GENERATOR_CPU_SHARE: Final = 0.9  # above this share of a core the generator is saturated
SLICES: Final = 10
PERCENTILES: Final = (50, 75, 90, 95, 99, 99.9, 100)
BUCKETS_PER_DECADE: Final = 10  # of the histogram, whose bounds grow by a constant factor
CONNECTION_LOST: Final = 0
WRONG_RESPONSE: Final = -1  # a 200 whose body cannot be a response to the request


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request, as its client saw it. Times are of `time.monotonic()`, in seconds."""

    path: str
    due: float
    sent: float
    ended: float
    status: int  # of the last attempt; or CONNECTION_LOST, or WRONG_RESPONSE
    attempts: int

    @property
    def latency_s(self) -> float:
        """Seconds since the request was due; infinite if it failed."""
        return self.ended - self.due if self.status == 200 else math.inf

    @property
    def lateness_s(self) -> float:
        """Seconds between the due time of the request and its sending."""
        return self.sent - self.due


@dataclass(frozen=True)
class Measurement:
    """The summary of one load. A percentile is infinite if too many requests failed."""

    rate: float  # requests per second that were requested
    offered_rate: float  # requests per second that were sent
    seconds: float
    p50_ms: float
    p99_ms: float
    percentiles_ms: dict[str, float]  # by the percentile, such as "99.9"; "100" is the maximum
    histogram: list[tuple[float, float, int]]  # of the answered requests: from and to a latency in ms, and their number
    p99_ms_by_route: dict[str, float]
    p99_ms_by_slice: list[float]  # one for each tenth of the time
    bad_share: float  # failed, or later than the target
    statuses: dict[str, int]  # number of requests by final status
    retries: int
    lateness_p99_ms: float
    bad_share_since_sent: float  # the bad share without the generator's lateness
    generator_cpu_share: float  # of one core
    run: Run

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.statuses.items() if status != "200")

    @property
    def generator_limited(self) -> bool:
        """Whether the generator, not the server, may have caused the bad requests."""
        saturated = self.generator_cpu_share > MAX_GENERATOR_CPU_SHARE
        return saturated or self.bad_share > MAX_BAD_SHARE >= self.bad_share_since_sent


def generator_limited(measurements: Sequence[Measurement], rate: float) -> bool:
    """Whether every failed load above a rate was limited by the generator: the server may then hold more."""
    failed = [load for load in measurements if load.rate > rate and load.bad_share > MAX_BAD_SHARE]
    return bool(failed) and all(load.generator_limited for load in failed)


def histogram(latencies_ms: Sequence[float]) -> list[tuple[float, float, int]]:
    """Counts latencies between bounds that grow by a constant factor. Returns no empty bucket at either end."""
    places = [math.floor(BUCKETS_PER_DECADE * math.log10(max(latency_ms, 1e-3))) for latency_ms in latencies_ms]
    if not places:
        return []
    counts = Counter(places)
    bounds = {place: 10 ** (place / BUCKETS_PER_DECADE) for place in range(min(places), max(places) + 2)}
    return [(bounds[place], bounds[place + 1], counts[place]) for place in range(min(places), max(places) + 1)]


def summarize(
    results: Sequence[RequestResult],
    started: float,
    seconds: float,
    rate: float,
    target_ms: float,
    generator_cpu_share: float = 0.0,
) -> Measurement:
    """Summarizes the results of a load. There must be at least one result."""
    target_s = target_ms / 1000

    def slot(result: RequestResult, count: int) -> int:
        return min(count - 1, int((result.due - started) / seconds * count))

    def p99_ms(some: Sequence[RequestResult]) -> float:
        return 1000 * percentile((result.latency_s for result in some), 1 - MAX_BAD_SHARE)

    whole_seconds = math.ceil(seconds)
    requests, bad = [0] * whole_seconds, [0] * whole_seconds
    for result in results:
        requests[slot(result, whole_seconds)] += 1
        bad[slot(result, whole_seconds)] += result.latency_s > target_s
    paths = sorted({result.path for result in results})
    statuses = sorted({result.status for result in results})
    return Measurement(
        rate=rate,
        offered_rate=len(results) / seconds,
        seconds=seconds,
        p50_ms=1000 * percentile((result.latency_s for result in results), 0.5),
        p99_ms=p99_ms(results),
        percentiles_ms={
            f"{share:g}": 1000 * percentile((result.latency_s for result in results), share / 100)
            for share in PERCENTILES
        },
        histogram=histogram([1000 * result.latency_s for result in results if result.status == 200]),
        p99_ms_by_route={path: p99_ms([result for result in results if result.path == path]) for path in paths},
        p99_ms_by_slice=[p99_ms([result for result in results if slot(result, SLICES) == n]) for n in range(SLICES)],
        bad_share=sum(bad) / len(results),
        statuses={str(status): sum(result.status == status for result in results) for status in statuses},
        retries=sum(result.attempts - 1 for result in results),
        lateness_p99_ms=1000 * percentile((result.lateness_s for result in results), 1 - MAX_BAD_SHARE),
        bad_share_since_sent=sum(result.latency_s - result.lateness_s > target_s for result in results) / len(results),
        generator_cpu_share=generator_cpu_share,
        run=Run(rate, tuple(requests), tuple(bad)),
    )
