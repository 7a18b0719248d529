"""The report of a benchmark, as tables, as data and as a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from swiftlet_serve.benchmark.bench import Benchmark
from swiftlet_serve.benchmark.measure import Interval, Result
from swiftlet_serve.offline.environment import load_warnings

SUBJECT: Final = "native"
FILE_NAME: Final = "engines"
COLUMNS: Final = ("case", "engine", "sequences/s a core", "ms a batch", "share of the peak", "error")
MIB: Final = 1 << 20


def subject(benchmark: Benchmark) -> str:
    """Returns the engine that the others are compared with: `native`, or the first one."""
    names = [result.engine for result in benchmark.results]
    return SUBJECT if SUBJECT in names else next(iter(names), "")


def speed_up(result: Result, rival: Result) -> Interval:
    """Returns the speed of an engine relative to a rival, which ran in the same rounds."""
    return Interval.of([theirs / mine for mine, theirs in zip(result.rounds, rival.rounds, strict=True)])


def best_of_others(results: Sequence[Result], name: str) -> tuple[Result, Result] | None:
    """Returns an engine's result in a case, and the best of the others; None if either is missing."""
    mine = next((result for result in results if result.engine == name), None)
    rivals = [result for result in results if result.engine != name]
    best = min(rivals, key=lambda rival: statistics.median(rival.rounds), default=None)
    return None if mine is None or best is None else (mine, best)


def by_case(benchmark: Benchmark) -> dict[str, list[Result]]:
    cases: dict[str, list[Result]] = {}
    for result in benchmark.results:
        cases.setdefault(result.case, []).append(result)
    return cases


def text(benchmark: Benchmark) -> str:
    """Returns all tables in Markdown."""
    parts = [_introduction(benchmark), _speeds(benchmark), _speed_ups(benchmark)]
    if benchmark.scaling:
        parts.append(_scaling(benchmark))
    if benchmark.all_cores:
        parts.append(_all_cores(benchmark))
    if benchmark.memory:
        parts.append(_memory(benchmark))
    return "\n\n".join(parts)


def _introduction(benchmark: Benchmark) -> str:
    setting = benchmark.setting
    lines = [setting.description("")]
    if benchmark.kernel and benchmark.peak:
        peak = f"{benchmark.peak / 1e9:.0f} G multiply-adds/s on one core"
        lines.append(f"Measured peak of the kernel {benchmark.kernel}: {peak}.")
    lines.append(f"Texts: {benchmark.texts}. Intervals have a confidence of 95 %.")
    lines += load_warnings(setting.load, setting.cores)
    lines += [f"{name} is left out: {reason}." for name, reason in benchmark.left_out.items()]
    return "\n".join(lines)


def _speeds(benchmark: Benchmark) -> str:
    name = subject(benchmark)
    rows = []
    for case, results in by_case(benchmark).items():
        mine = next((result for result in results if result.engine == name), None)
        for result in results:
            rate = Interval.of([result.rows / seconds for seconds in result.rounds])
            share = result.multiply_adds / statistics.median(result.rounds) / benchmark.peak if benchmark.peak else None
            cells = [
                case,
                result.title,
                f"{_number(rate.value)} ({_number(rate.low)} to {_number(rate.high)})",
                f"{result.call_ms:.2f}",
                "–" if share is None else f"{share:.0%}",
                "–" if result.error is None else f"{result.error:.1%}",
                "–" if mine is None or result is mine else _ratio(speed_up(mine, result)),
            ]
            rows.append(cells)
    return _table([*COLUMNS, f"{name} is faster by"], rows)


def _speed_ups(benchmark: Benchmark) -> str:
    name = subject(benchmark)
    header = ["case", "M multiply-adds a sequence", "rounds", "best of the others", f"{name} is faster by"]
    rows = []
    for case, results in by_case(benchmark).items():
        work = f"{results[0].multiply_adds / results[0].rows / 1e6:.0f}"
        if pair := best_of_others(results, name):
            mine, rival = pair
            rows.append([case, work, f"{len(mine.rounds)}", rival.title, _ratio(speed_up(mine, rival))])
    return _table(header, rows)


def _scaling(benchmark: Benchmark) -> str:
    rows = [[scaling.case, scaling.engine, _ratio(scaling.ratio)] for scaling in benchmark.scaling]
    return _table(["case", "engine", "two cores against one"], rows)


def _all_cores(benchmark: Benchmark) -> str:
    name = subject(benchmark)
    cases: dict[str, list[Result]] = {}
    for result in benchmark.all_cores:
        cases.setdefault(result.case, []).append(result)
    rows = []
    for case, results in cases.items():
        mine = next((result for result in results if result.engine == name), None)
        for result in results:
            wall = Interval.of([1e3 * seconds / result.rows for seconds in result.rounds])
            times = f"{wall.value:.2f} ({wall.low:.2f} to {wall.high:.2f})"
            faster = "–" if mine is None or result is mine else _ratio(speed_up(mine, result))
            rows.append([case, result.title, times, faster])
    return _table([f"one sequence on {benchmark.setting.cores} cores", "engine", "ms", f"{name} is faster by"], rows)


def _memory(benchmark: Benchmark) -> str:
    rows = [
        [memory.network, memory.engine, f"{memory.file_bytes / MIB:.1f}", f"{memory.resident_bytes / MIB:.1f}"]
        for memory in benchmark.memory
    ]
    return _table(["network", "engine", "file, MiB", "resident, MiB"], rows)


def _ratio(interval: Interval) -> str:
    return f"{interval.value:.2f}× ({interval.low:.2f} to {interval.high:.2f})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)])


def write(benchmark: Benchmark, directory: Path, name: str = FILE_NAME) -> Iterator[Path]:
    """Writes tables, data and picture. Yields the path of each file."""
    directory.mkdir(parents=True, exist_ok=True)
    markdown, data, picture = (directory / f"{name}{suffix}" for suffix in (".md", ".json", ".png"))
    markdown.write_text(f"# Engines side by side\n\n{text(benchmark)}\n", "utf-8")
    yield markdown
    data.write_text(json.dumps(asdict(benchmark), indent=1, ensure_ascii=False) + "\n", "utf-8")
    yield data
    draw(benchmark, picture)
    yield picture


def draw(benchmark: Benchmark, path: Path) -> None:
    """Draws the milliseconds of one core per sequence, for each case and engine."""
    from matplotlib.figure import Figure

    cases = by_case(benchmark)
    names = list(dict.fromkeys(result.engine for result in benchmark.results))
    figure = Figure(figsize=(10, 1.5 + 0.16 * len(names) * len(cases)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(names)
    for i, name in enumerate(names):
        at, values, errors = [], [], []
        for row, results in enumerate(cases.values()):
            for result in results:
                if result.engine == name:
                    interval = Interval.of([1e3 * seconds / result.rows for seconds in result.rounds])
                    at.append(row + i * height)
                    values.append(interval.value)
                    errors.append((interval.value - interval.low, interval.high - interval.value))
        axes.barh(at, values, height, xerr=list(zip(*errors, strict=True)), label=name, error_kw={"linewidth": 0.8})
    axes.set(xscale="log", xlabel="ms of one core a sequence, 95 %", yticks=[row + 0.4 for row in range(len(cases))])
    axes.set_yticklabels(list(cases), fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    setting = benchmark.setting
    figure.suptitle(f"{setting.date}, {setting.commit}, {setting.machine}", fontsize=8)
    figure.savefig(path, dpi=110, format="png")
