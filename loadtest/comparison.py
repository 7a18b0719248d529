"""A comparison of servers over HTTP: its measurements, as a table, data and a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from loadtest.wrk import WrkResult
from swiftlet_serve.offline.environment import Environment, load_warnings

FILE_NAME: Final = "http"
HEAD: Final = ("workload", "c", "server", "requests/s", "p50 ms", "p99 ms", "p99 of short ones", "failed")


@dataclass(frozen=True)
class Point:
    """The measurements of a server on a workload at a concurrency."""

    workload: str
    server: str
    callers: int
    rounds: tuple[WrkResult, ...]
    short_p99: float | None  # milliseconds, of the short bodies if there are long ones too

    @property
    def median_round(self) -> WrkResult:
        """The round with the median rate."""
        return sorted(self.rounds, key=lambda result: result.rate)[len(self.rounds) // 2]


@dataclass(frozen=True)
class Comparison:
    setting: Environment
    models: tuple[str, ...]
    seconds: float
    points: tuple[Point, ...]
    resident_mib: dict[str, float]


def row(point: Point) -> str:
    rates, middle = [result.rate for result in point.rounds], point.median_round
    short = "–" if point.short_p99 is None else f"{point.short_p99:.0f}"
    cells = [
        point.workload,
        str(point.callers),
        point.server,
        f"{median(rates):,.1f} ({min(rates):,.1f} to {max(rates):,.1f})",
        f"{middle.p50:.1f}",
        f"{middle.p99:.1f}",
        short,
        str(sum(result.failed for result in point.rounds)),
    ]
    return f"| {' | '.join(cells)} |"


def head() -> str:
    return f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}"


def introduction(comparison: Comparison) -> str:
    """Returns the setting of the measurement."""
    memory = ", ".join(f"{name} {mib:.0f}" for name, mib in comparison.resident_mib.items())
    where, rounds = comparison.setting, len(comparison.points[0].rounds)
    lines = [
        where.description(),
        f"Models: {', '.join(comparison.models)}. Closed loop, median of {rounds} rounds of "
        f"{comparison.seconds:g} s or more, and the lowest and highest rate.",
        f"Resident memory of all processes afterwards, MiB: {memory}.",
    ]
    return "\n".join([*lines, *load_warnings(where.load, where.cores)])


def write(comparison: Comparison, directory: Path) -> None:
    """Writes the table, the data and the picture."""
    directory.mkdir(parents=True, exist_ok=True)
    table = "\n".join([head(), *map(row, comparison.points)])
    text = f"# Over HTTP\n\n{introduction(comparison)}\n\n{table}\n"
    (directory / f"{FILE_NAME}.md").write_text(text, "utf-8")
    data = json.dumps(asdict(comparison), indent=1, ensure_ascii=False)
    (directory / f"{FILE_NAME}.json").write_text(data + "\n", "utf-8")
    draw(comparison, directory / f"{FILE_NAME}.png")


def draw(comparison: Comparison, path: Path) -> None:
    """Draws a panel for each workload: requests per second over concurrency."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point.workload for point in comparison.points))
    figure = Figure(figsize=(3.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for server in dict.fromkeys(point.server for point in comparison.points):
            points = [point for point in comparison.points if (point.workload, point.server) == (name, server)]
            x = [point.callers for point in points]
            axes.plot(x, [point.median_round.rate for point in points], marker="o", label=server)
        axes.set(title=name, xscale="log", yscale="log", xlabel="callers", ylabel="requests/s")
        axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    where = comparison.setting
    figure.suptitle(f"{where.date}, {where.commit}, {where.machine}", fontsize=8)
    figure.savefig(path, dpi=110, format="png")
