"""The report on two endpoints: agreement, latency and cost, and whether the candidate may take over."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from swiftlet_serve.migration import answers
from swiftlet_serve.migration.replay import Pair, Side
from swiftlet_serve.telemetry.endpoint_stats import EndpointStats, Responses

MAX_LINES: Final = 50  # of the log that the report names
UNKNOWN: Final = "–"
MAX_TOKENS: Final = 1 << 40  # that a response can tell
FINE_S: Final = tuple(1e-4 * 1.01**step for step in range(1570))
"""Bounds of the times of a replay, up to ten minutes: each is 1 % longer than the one before."""


class Price(NamedTuple):
    """What an endpoint costs, in a currency of the user's choice."""

    amount: float
    per_tokens: bool  # per million tokens, or else per thousand requests

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a price such as `0.4/1M-tokens` or `0.02/1k-requests`. Raises ValueError."""
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)/(1M-tokens|1k-requests)", text, re.ASCII)
        if match is None:
            raise ValueError("Write a price such as 0.4/1M-tokens or 0.02/1k-requests.")
        return cls(float(match[1]), match[2] == "1M-tokens")


class Report(EndpointStats):
    """The results of a replay, without any text of a request or an answer."""

    def __init__(self) -> None:
        super().__init__(FINE_S)
        self.differing: list[int] = []  # lines of the log

    def add_pair(self, pair: Pair) -> None:
        """Counts a request, and the line of one with answers that differ."""
        if not count(self, pair):
            self.differing.append(pair.entry.line)


def count(stats: EndpointStats, pair: Pair) -> bool:
    """Counts a request, and returns whether all answers agree. An error of the candidate differs from every answer."""
    _count(stats.existing, pair.existing)
    _count(stats.candidate, pair.candidate)
    if not pair.existing.answers:
        return True
    by_kind: defaultdict[str, list[answers.Compared]] = defaultdict(list)
    for compared in answers.compare(pair.existing.answers, pair.candidate.answers):
        by_kind[compared.kind].append(compared)
    for name, found in by_kind.items():
        kind, agreed = stats.kinds[name], [one for one in found if one.agreement.agrees]
        kind.agreed.add(len(agreed), len(found))
        kind.shifts += sum(one.agreement.shift for one in agreed)
        taus = [one.tau for one in found if not math.isnan(one.tau)]
        kind.taus += sum(taus)
        kind.rankings += len(taus)
    return all(one.agreement.agrees for found in by_kind.values() for one in found)


def _count(responses: Responses, side: Side) -> None:
    responses.outcomes[side.reply.outcome] += 1
    if side.answers is None:
        return
    responses.answers += 1
    if side.reply.seconds > 0:  # recorded answers have no time
        responses.seconds.add(side.reply.seconds)
    tokens = _tokens(side.reply.content)
    responses.tokens += tokens or 0
    responses.answers_with_tokens += tokens is not None


def objection(stats: EndpointStats, least: float, most_ms: float) -> str | None:
    """Returns why the candidate may not take over, or None if it may.

    Args:
        stats: what was found.
        least: the least agreement, from 0 to 1. The interval of every kind of answers must lie above it.
        most_ms: the largest p99 of the candidate's times, in milliseconds.
    """
    if not stats.kinds:
        return "no answer was compared."
    for name, kind in sorted(stats.kinds.items()):
        if kind.agreement.low < 100 * least:
            return f"its agreement may be below {100 * least:g} % (answers of the kind {name})."
    if 1000 * stats.candidate.seconds.percentile(0.99) > most_ms:
        return f"its p99 is above {most_ms:g} ms."
    return None


def lines(
    stats: EndpointStats, objection: str | None, prices: tuple[Price | None, Price | None], title: str
) -> Iterator[str]:
    """Yields the report in Markdown.

    Args:
        stats: what was found.
        objection: to it.
        prices: of the existing endpoint and of the candidate.
        title: the title of the report.
    """
    yield f"# {title}\n"
    yield "The candidate may take over.\n" if objection is None else f"The candidate may not take over: {objection}\n"
    both = (stats.existing, stats.candidate)
    yield from _table(
        ("", "Existing", "Candidate"),
        [
            ("Requests", *(str(side.outcomes.total()) for side in both)),
            ("Answers", *(str(side.answers) for side in both)),
            ("No answers", *(_failures(side.outcomes) for side in both)),
            ("p50", *(_milliseconds(side, 0.5) for side in both)),
            ("p99", *(_milliseconds(side, 0.99) for side in both)),
            ("Cost of 1,000 requests", *(_number(_cost(s, price), 4) for s, price in zip(both, prices, strict=True))),
        ],
    )
    rows = []
    for name, kind in sorted(stats.kinds.items()):
        score = kind.agreement
        interval = f"{score.low:.2f} to {score.high:.2f} %"
        means = _mean(kind.shifts, kind.agreed.hits, 4), _mean(kind.taus, kind.rankings, 3)
        rows.append((name, f"{score.value:.2f} %", interval, str(kind.agreed.sizes), str(score.n), *means))
    header = ("Kind", "Agreement", "95 % interval", "Answers", "Requests", "Mean difference of scores", "Kendall's tau")
    yield from _table(header, rows)


def differing(lines: Sequence[int]) -> str:
    """Returns the sentence that names the lines of a log with answers that differ."""
    named = ", ".join(map(str, sorted(lines)[:MAX_LINES]))
    more = len(lines) - MAX_LINES
    return f"Lines of the log with answers that differ: {named}{f', and {more} more' if more > 0 else ''}."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""


def _failures(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {n}" for name, n in sorted(outcomes.items()) if name != "200") or "0"


def _milliseconds(endpoint: Responses, share: float) -> str:
    seconds = endpoint.seconds.percentile(share)
    return UNKNOWN if math.isnan(seconds) else f"{1000 * seconds:.1f} ms"


def _cost(responses: Responses, price: Price | None) -> float:
    """Returns the cost of a thousand requests; NaN without a price, or if not every answer tells its tokens."""
    if price is None or not responses.answers:
        return math.nan
    if not price.per_tokens:
        return price.amount
    if responses.answers_with_tokens != responses.answers:
        return math.nan
    return price.amount * responses.tokens / responses.answers / 1000


def _number(value: float, decimals: int) -> str:
    return UNKNOWN if math.isnan(value) else f"{value:.{decimals}f}"


def _mean(total: float, n: int, decimals: int) -> str:
    return _number(total / n if n else math.nan, decimals)


def _tokens(content: Any) -> int | None:
    """Returns the tokens that a response tells; None if it tells none."""
    usage = content.get("usage") if isinstance(content, dict) else None
    if not isinstance(usage, dict):
        return None
    names = ("total_tokens",) if "total_tokens" in usage else ("input_tokens", "output_tokens")
    told = [usage.get(name) for name in names]
    counts = [count for count in told if type(count) is int and 0 <= count <= MAX_TOKENS]
    return sum(counts) if counts else None
