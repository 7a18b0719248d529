"""The report on a replay: agreement, latency and cost of two endpoints, and whether the candidate may take over."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from swiftlet_models import metrics
from swiftlet_models.metrics import Score
from swiftlet_serve.migration import answers
from swiftlet_serve.migration.replay import Pair, Side
from swiftlet_serve.telemetry.percentile import percentile

MAX_LINES: Final = 50  # of the log that the report names
UNKNOWN: Final = "–"


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


@dataclass
class Responses:
    """The responses of one endpoint."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)  # of the responses that tell them

    def add(self, side: Side) -> None:
        """Counts a response."""
        self.outcomes[side.reply.outcome] += 1
        if side.answers is not None:
            self.seconds.append(side.reply.seconds)
            self.tokens += _tokens(side.reply.content)

    def cost(self, price: Price | None) -> float:
        """Returns the cost of a thousand requests; NaN without a price, or if not every answer tells its tokens."""
        if price is None or not self.seconds:
            return math.nan
        if not price.per_tokens:
            return price.amount
        if len(self.tokens) != len(self.seconds):
            return math.nan
        return price.amount * sum(self.tokens) / len(self.tokens) / 1000


@dataclass
class Kind:
    """The comparisons of answers of one kind."""

    agreed: list[int] = field(default_factory=list)  # answers that agree, by request
    answers: list[int] = field(default_factory=list)  # all answers, by request
    shifts: list[float] = field(default_factory=list)  # of the scores of answers that agree
    taus: list[float] = field(default_factory=list)

    @property
    def agreement(self) -> Score:
        """The share of answers that agree. Answers to one request count as one case at least."""
        return metrics.clustered_share(self.agreed, self.answers)


@dataclass
class Report:
    """The results of a replay, without any text of a request or an answer."""

    existing: Responses = field(default_factory=Responses)
    candidate: Responses = field(default_factory=Responses)
    kinds: defaultdict[str, Kind] = field(default_factory=lambda: defaultdict(Kind))
    differing: list[int] = field(default_factory=list)  # lines of the log

    def add(self, pair: Pair) -> None:
        """Counts a request. An error of the candidate differs from every answer."""
        self.existing.add(pair.existing)
        self.candidate.add(pair.candidate)
        if not pair.existing.answers:
            return
        by_kind: defaultdict[str, list[answers.Compared]] = defaultdict(list)
        for compared in answers.compare(pair.existing.answers, pair.candidate.answers):
            by_kind[compared.kind].append(compared)
        for name, found in by_kind.items():
            kind, agreed = self.kinds[name], [one for one in found if one.agreement.agrees]
            kind.agreed.append(len(agreed))
            kind.answers.append(len(found))
            kind.shifts += [one.agreement.shift for one in agreed]
            kind.taus += [one.tau for one in found if not math.isnan(one.tau)]
            if len(agreed) < len(found) and self.differing[-1:] != [pair.entry.line]:
                self.differing.append(pair.entry.line)

    def objection(self, least: float, most_ms: float) -> str | None:
        """Returns why the candidate may not take over, or None if it may.

        Args:
            least: the least agreement, from 0 to 1. The interval of every kind of answers must lie above it.
            most_ms: the largest p99 of the candidate's times, in milliseconds.
        """
        if not self.kinds:
            return "no answer was compared."
        for name, kind in sorted(self.kinds.items()):
            if kind.agreement.low < 100 * least:
                return f"its agreement may be below {100 * least:g} % (answers of the kind {name})."
        if 1000 * percentile(self.candidate.seconds, 0.99) > most_ms:
            return f"its p99 is above {most_ms:g} ms."
        return None


def lines(report: Report, objection: str | None, prices: tuple[Price | None, Price | None], log: str) -> Iterator[str]:
    """Yields the report in Markdown.

    Args:
        report: what a replay found.
        objection: of the report.
        prices: of the existing endpoint and of the candidate.
        log: the name of the log.
    """
    yield f"# Replay of {log}\n"
    yield "The candidate may take over.\n" if objection is None else f"The candidate may not take over: {objection}\n"
    both = (report.existing, report.candidate)
    yield from _table(
        ("", "Existing", "Candidate"),
        [
            ("Requests", *(str(side.outcomes.total()) for side in both)),
            ("Answers", *(str(len(side.seconds)) for side in both)),
            ("No answers", *(_failures(side.outcomes) for side in both)),
            ("p50", *(_milliseconds(side, 0.5) for side in both)),
            ("p99", *(_milliseconds(side, 0.99) for side in both)),
            ("Cost of 1,000 requests", *(_number(s.cost(price), 4) for s, price in zip(both, prices, strict=True))),
        ],
    )
    rows = []
    for name, kind in sorted(report.kinds.items()):
        score = kind.agreement
        interval = f"{score.low:.2f} to {score.high:.2f} %"
        counts = str(sum(kind.answers)), str(score.n)
        means = _number(_mean(kind.shifts), 4), _number(_mean(kind.taus), 3)
        rows.append((name, f"{score.value:.2f} %", interval, *counts, *means))
    header = ("Kind", "Agreement", "95 % interval", "Answers", "Requests", "Mean difference of scores", "Kendall's tau")
    yield from _table(header, rows)
    if report.differing:
        named = ", ".join(map(str, sorted(report.differing)[:MAX_LINES]))
        more = len(report.differing) - MAX_LINES
        yield f"Lines of the log with answers that differ: {named}{f', and {more} more' if more > 0 else ''}."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""


def _failures(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {n}" for name, n in sorted(outcomes.items()) if name != "200") or "0"


def _milliseconds(endpoint: Responses, share: float) -> str:
    seconds = percentile(endpoint.seconds, share)
    return f"{1000 * seconds:.1f} ms" if seconds > 0 else UNKNOWN  # recorded answers have no time


def _number(value: float, decimals: int) -> str:
    return UNKNOWN if math.isnan(value) else f"{value:.{decimals}f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _tokens(content: Any) -> list[float]:
    """Returns the tokens that a response tells, as a list of one number or none."""
    usage = content.get("usage") if isinstance(content, dict) else None
    if not isinstance(usage, dict):
        return []
    names = ("total_tokens",) if "total_tokens" in usage else ("input_tokens", "output_tokens")
    counts = [usage[name] for name in names if isinstance(usage.get(name), int)]
    return [float(sum(counts))] if counts else []
