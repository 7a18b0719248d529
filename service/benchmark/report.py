"""What a benchmark found, as tables, as data and as a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from swiftlet_serve.service.benchmark.bench import Found, Interval, Result
from swiftlet_serve.service.offline.environment import other_work

OURS: Final = "native"
NAME: Final = "engines"  # of the files
COLUMNS: Final = ("case", "engine", "sequences/s a core", "ms a call", "share of the peak", "off by")
MIB: Final = 1 << 20


def ours(found: Found) -> str:
    """The contender that the others are compared with: our engine, or the first there is."""
    names = [result.contender for result in found.results]
    return OURS if OURS in names else next(iter(names), "")


def quotient(result: Result, other: Result) -> Interval:
    """How many times as fast `result` is as `other`, which ran in the same rounds."""
    return Interval.of([theirs / mine for mine, theirs in zip(result.rounds, other.rounds, strict=True)])


def best_of_others(results: Sequence[Result], name: str) -> tuple[Result, Result] | None:
    """Of the results of one case that of `name`, and the best of all others; None where either is missing."""
    mine = next((result for result in results if result.contender == name), None)
    others = [result for result in results if result.contender != name]
    return None if mine is None or not others else (mine, min(others, key=lambda one: statistics.median(one.rounds)))


def by_case(found: Found) -> dict[str, list[Result]]:
    cases: dict[str, list[Result]] = {}
    for result in found.results:
        cases.setdefault(result.case, []).append(result)
    return cases


def tell(found: Found) -> str:
    """Everything, as Markdown, which a terminal shows as well."""
    parts = [_about(found), _speeds(found), _quotients(found)]
    if found.scaling:
        parts.append(_scaling(found))
    if found.memory:
        parts.append(_memory(found))
    return "\n\n".join(parts)


def _about(found: Found) -> str:
    lines = [found.setting.told("")]
    if found.kernel and found.peak:
        lines.append(
            f"Measured peak of the kernel {found.kernel}: {found.peak / 1e9:.0f} G multiply-adds/s on one core."
        )
    lines.append(f"Texts: {found.texts}. Intervals hold with 95 %.")
    lines += other_work(found.setting.load, found.setting.cores)
    lines += [f"{name} is left out: {reason}." for name, reason in found.left_out.items()]
    return "\n".join(lines)


def _speeds(found: Found) -> str:
    name = ours(found)
    rows = []
    for case, results in by_case(found).items():
        mine = next((result for result in results if result.contender == name), None)
        for result in results:
            per_core = Interval.of([result.rows / seconds for seconds in result.rounds])
            share = result.needed / statistics.median(result.rounds) / found.peak if found.peak else None
            times = "–" if mine is None or result is mine else _times(quotient(mine, result))
            shown = f"{_number(per_core.value)} ({_number(per_core.low)} to {_number(per_core.high)})"
            share_shown = "–" if share is None else f"{share:.0%}"
            off = "–" if result.off is None else f"{result.off:.1%}"
            rows.append([case, result.title, shown, f"{result.call_ms:.2f}", share_shown, off, times])
    return _table([*COLUMNS, f"{name} is faster by"], rows)


def _quotients(found: Found) -> str:
    rows = []
    for case, results in by_case(found).items():
        work = f"{results[0].needed / results[0].rows / 1e6:.0f}"
        if pair := best_of_others(results, ours(found)):
            mine, other = pair
            rows.append([case, work, f"{len(mine.rounds)}", other.title, _times(quotient(mine, other))])
    return _table(
        ["case", "M multiply-adds a sequence", "rounds", "best of the others", f"{ours(found)} is faster by"], rows
    )


def _scaling(found: Found) -> str:
    return _table(
        ["case", "engine", "two cores against one"],
        [[one.case, one.contender, _times(one.times)] for one in found.scaling],
    )


def _memory(found: Found) -> str:
    return _table(
        ["network", "engine", "file, MiB", "resident, MiB"],
        [
            [one.network, one.contender, f"{one.file_bytes / MIB:.1f}", f"{one.resident_bytes / MIB:.1f}"]
            for one in found.memory
        ],
    )


def _times(interval: Interval) -> str:
    return f"{interval.value:.2f}× ({interval.low:.2f} to {interval.high:.2f})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)])


def write(found: Found, directory: Path) -> Iterator[Path]:
    """Writes tables, data and picture, and names each file."""
    directory.mkdir(parents=True, exist_ok=True)
    markdown, data, picture = (directory / f"{NAME}{suffix}" for suffix in (".md", ".json", ".png"))
    markdown.write_text(f"# Engines side by side on one core\n\n{tell(found)}\n", "utf-8")
    yield markdown
    data.write_text(json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n", "utf-8")
    yield data
    draw(found, picture)
    yield picture


def draw(found: Found, path: Path) -> None:
    """A PNG: for each case how long each contender takes for a sequence, on one core."""
    from matplotlib.figure import Figure

    cases = by_case(found)
    names = list(dict.fromkeys(result.contender for result in found.results))
    figure = Figure(figsize=(10, 1.5 + 0.16 * len(names) * len(cases)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        at, values, errors = [], [], []
        for row, results in enumerate(cases.values()):
            for result in results:
                if result.contender == name:
                    took = Interval.of([1e3 * seconds / result.rows for seconds in result.rounds])
                    at.append(row + i * height)
                    values.append(took.value)
                    errors.append((took.value - took.low, took.high - took.value))
        axes.barh(at, values, height, xerr=list(zip(*errors, strict=True)), label=name, error_kw={"linewidth": 0.8})
    axes.set(xscale="log", xlabel="ms of one core a sequence, 95 %", yticks=[row + 0.4 for row in range(len(cases))])
    axes.set_yticklabels(list(cases), fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    setting = found.setting
    figure.suptitle(f"{setting.date}, {setting.commit}, {setting.machine}", fontsize=8)
    figure.savefig(path, dpi=110, format="png")
