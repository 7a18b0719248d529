"""The report of a load test, as text, as an HTML page and as a picture."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadtest.verdict import MAX_BAD_SHARE, Run, fit
from swiftlet_serve import extras
from swiftlet_serve.errors import SetupError
from swiftlet_serve.offline.environment import load_warnings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TARGET: Final = "Target: 99 % of the requests answered within {:g} ms of when they were due."
COLUMNS: Final = (
    "rate",
    "offered",
    "seconds",
    "p50 ms",
    "p99 ms",
    "p99 by route",
    "bad",
    "failed",
    "retries",
    "generator",
)
HEAD: Final = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
STYLE: Final = """
body { max-width: 70rem; margin: 0 auto; padding: 2rem; color: #16232a; font: 16px/1.5 system-ui, sans-serif }
h1 { margin: 0 0 1rem }
h2 { margin: 2.5rem 0 0.5rem; font-size: 1.25rem }
p { margin: 0.5rem 0 }
img { max-width: 100%; margin: 1rem 0 }
.scroll { margin: 1rem 0; overflow-x: auto }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums }
td, th { padding: 0.35rem 0.8rem; border-bottom: 1px solid #c3ccd0; text-align: right; vertical-align: top }
td:first-child, th:first-child { padding-left: 0; text-align: left }
"""
HTML_HEAD: Final = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Load test</title>
<style>{STYLE}</style>"""


def require_chart() -> None:
    """Checks, before a measurement, that its chart can be drawn at the end.

    Raises:
        SystemExit: a package of the extra `plot` is not installed.
    """
    try:
        extras.require("plot")
    except SetupError as error:
        raise SystemExit(str(error)) from None


def row(measurement: Mapping[str, Any], generator_limited: bool) -> str:
    """Returns the row of one measurement."""
    generator = f"{measurement['lateness_p99_ms']:.0f} ms late, {measurement['generator_cpu_share']:.0%} of a core"
    failed = [f"{count} × {status}" for status, count in measurement["statuses"].items() if status != "200"]
    cells = [
        f"{measurement['rate']:.1f}",
        f"{measurement['offered_rate']:.1f}",
        f"{measurement['seconds']:.0f}",
        f"{measurement['p50_ms']:.0f}",
        f"{measurement['p99_ms']:.0f}",
        ", ".join(f"{path} {p99_ms:.0f}" for path, p99_ms in measurement["p99_ms_by_route"].items()),
        f"{measurement['bad_share']:.1%}",
        ", ".join(failed) or "0",
        str(measurement["retries"]),
        f"**the limit**: {generator}" if generator_limited else generator,
    ]
    return f"| {' | '.join(cells)} |"


def distribution(measurements: Sequence[Mapping[str, Any]]) -> str:
    """Returns the percentiles of the latency of each load in ms, as a table. Failed requests count as infinite."""
    names = list(measurements[0]["percentiles_ms"])
    titles = ["max" if name == "100" else f"p{name}" for name in names]
    lines = [f"| {' | '.join(['rate', *titles])} |", f"|{'---|' * (len(names) + 1)}"]
    for load in measurements:
        cells = [f"{load['percentiles_ms'][name]:.0f}" for name in names]
        lines.append(f"| {' | '.join([format(load['rate'], '.1f'), *cells])} |")
    return "\n".join(lines)


def typical(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the only measurement, or the one with the highest rate that a search found to hold."""
    measurements: Sequence[Mapping[str, Any]] = results["measurements"]
    held = [load for load in measurements if "maximum" in results and load["rate"] <= results["maximum"]["rate"]]
    return max(held, key=lambda load: float(load["rate"]), default=measurements[0])


def generators(rates: Mapping[str, Mapping[str, float | None]]) -> str:
    """Returns the closed-loop rates of both generators, and whether this one is fast enough for the server."""
    lines = ["| closed loop, requests/s | this generator | wrk | quotient |", "|---|---|---|---|"]
    for title, name in {"a server that does nothing": "null_server", "this server": "server"}.items():
        own, wrk = rates[name]["python"] or 0.0, rates[name]["wrk"]
        compared = f"{wrk:.0f} | {own / wrk:.2f}" if wrk else "not installed | –"
        lines.append(f"| {title} | {own:.0f} | {compared} |")
    own, ceiling = rates["server"]["python"] or 0.0, rates["null_server"]["python"] or 0.0
    if own > ceiling / 2:
        lines += ["", f"The server answers so fast that this generator is near its own limit of {ceiling:.0f}/s."]
    else:
        lines += ["", f"This generator can send {ceiling / max(own, 1e-9):.0f} times as fast as the server answers."]
    return "\n".join(lines)


def conclusion(results: Mapping[str, Any]) -> str:
    """Returns the verdict in a few sentences."""
    lines = []
    if maximum := results.get("maximum"):
        more = " or more: no rate failed" if maximum["unbounded"] else ""
        lines.append(
            f"Highest rate with p99 ≤ {results['target_p99_ms']:g} ms: {maximum['rate']:.1f} requests/s "
            f"(95 % interval {maximum['low']:.1f} to {maximum['high']:.1f}){more}."
        )
        if not results["complete"]:
            lines.append("The search ran out of time: some rates were not repeated as often as requested.")
        if maximum["generator_limited"]:
            lines.append("The generator was the limit, not the server. The server may hold a higher rate.")
    else:
        (run,) = results["measurements"]
        lines.append(f"p99 {run['p99_ms']:.0f} ms at {run['offered_rate']:.1f} requests/s, {run['bad_share']:.1%} bad.")
        first, *_, last = run["p99_ms_by_slice"]
        lines.append(f"From the first to the last tenth of the time, p99 went from {first:.0f} to {last:.0f} ms.")
        if run["generator_limited"]:
            lines.append("The generator was the limit, not the server.")
    lines += load_warnings(results["setting"]["load"], results["setting"]["cores"])
    if comparison := results.get("comparison"):
        lines.append(comparison)
    required = f" at {results['at_least']:g} requests/s" if results["at_least"] else ""
    return "\n".join([*lines, f"SLO{required}: {results['verdict'].upper()}"])


def compare(results: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Returns the change since an earlier result. Overlapping intervals show no difference."""
    now, then = results.get("maximum"), before.get("maximum")
    when = f"{before['setting']['date']} (commit {before['setting']['commit']})"
    load = ("target_p99_ms", "arrivals", "workload", "server")
    if not (now and then) or any(results[name] != before[name] for name in load):
        return f"The result of {when} is of another load, and not compared."
    figures = f"{then['rate']:.1f} ({then['low']:.1f} to {then['high']:.1f}) on {when}"
    machine = "" if results["setting"]["machine"] == before["setting"]["machine"] else ", on another machine"
    if now["low"] > then["high"]:
        change = "higher than"
    elif now["high"] < then["low"]:
        change = "LOWER than"
    else:
        change = "no different, as far as the intervals show, from"
    quotient = f"; quotient {now['rate'] / then['rate']:.2f}" if then["rate"] else ""
    return f"This is {change} {figures}{machine}{quotient}."


def write_summary(results: Mapping[str, Any], path: Path) -> None:
    """Writes the result without its measurements: small enough to commit."""
    summary = {name: value for name, value in results.items() if name not in ("measurements", "comparison")}
    path.write_text(json.dumps(_finite(summary), indent=1, ensure_ascii=False) + "\n", "utf-8")


def write(results: Mapping[str, Any], path: Path) -> None:
    """Writes the data, the picture and the page under one name."""
    path.with_suffix(".json").write_text(json.dumps(_finite(results), indent=1, ensure_ascii=False) + "\n", "utf-8")
    draw(results, path.with_suffix(".png"))
    path.with_suffix(".html").write_text(page(results, path.with_suffix(".png").read_bytes()), "utf-8")


def _finite(value: Any) -> Any:
    """Replaces infinity by None, because JSON has no infinity."""
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draws a search over its rates, or one load over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = 3 if "maximum" in results else 2
    figure, (*others, last) = pyplot.subplots(1, panels, figsize=(5 * panels, 4), layout="constrained")
    if "maximum" in results:
        _draw_search(results, *others)
    else:
        _draw_slices(results, *others)
    _draw_distribution(typical(results), results["target_p99_ms"], last)
    where = results["setting"]
    figure.suptitle(f"{where['date']}, {where['commit']}, {where['machine']}", fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_slices(results: Mapping[str, Any], axes: Axes) -> None:
    (load,) = results["measurements"]
    slices = load["p99_ms_by_slice"]
    axes.plot([(n + 0.5) * load["seconds"] / len(slices) for n in range(len(slices))], slices, marker="o")
    axes.axhline(results["target_p99_ms"], color="grey", linestyle="--", label="target")
    axes.set(xlabel="seconds", ylabel="p99, ms", yscale="log")
    axes.legend(fontsize=8)


def _draw_distribution(load: Mapping[str, Any], target_ms: float, axes: Axes) -> None:
    """Draws the histogram of a load's latencies. The heights are shares, because the buckets differ in width."""
    total = sum(load["statuses"].values())
    for low, high, count in load["histogram"]:
        axes.bar(low, 100 * count / total, width=high - low, align="edge", color="C0", edgecolor="white", linewidth=0.5)
    for name, style in {"50": ":", "99": "-."}.items():
        if math.isfinite(load["percentiles_ms"][name]):
            axes.axvline(load["percentiles_ms"][name], color="C1", linestyle=style, label=f"p{name}")
    axes.axvline(target_ms, color="grey", linestyle="--", label="target")
    axes.set(xlabel=f"latency at {load['rate']:.1f} requests/s, ms", ylabel="requests, %", xscale="log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize=8)


def _draw_search(results: Mapping[str, Any], latencies: Axes, shares: Axes) -> None:
    measurements, maximum = results["measurements"], results["maximum"]
    rates = [load["rate"] for load in measurements]
    for name in ("p50_ms", "p99_ms"):
        values = [load[name] if math.isfinite(load[name]) else float("nan") for load in measurements]
        latencies.plot(rates, values, "o", label=name.removesuffix("_ms"))
    latencies.axhline(results["target_p99_ms"], color="grey", linestyle="--", label="target")
    latencies.set(xlabel="requests/s", ylabel="ms", yscale="log")
    curve = fit([Run(load["rate"], load["run"]["requests"], load["run"]["bad"]) for load in measurements])
    shares.plot(rates, [100 * load["bad_share"] for load in measurements], "o", label="a load")
    shares.plot([rate for rate, _ in curve], [100 * share for _, share in curve], label="fitted")
    shares.axhline(100 * MAX_BAD_SHARE, color="grey", linestyle="--", label="1 %")
    shares.set(xlabel="requests/s", ylabel="bad requests, %", yscale="symlog", ylim=(0, 100))
    for axes in (latencies, shares):
        axes.axvspan(maximum["low"], maximum["high"], alpha=0.2, label="highest rate, 95 %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def page(results: Mapping[str, Any], picture: bytes) -> str:
    """Returns the report as one HTML file with the picture inside."""
    where = results["setting"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    setting = f"{where['date']}, commit {where['commit']}. {where['machine']}, load {where['load']:.1f}. {versions}."
    parts = [f"<h1>Load test: {html.escape(results['verdict'])}</h1>", f"<p>{html.escape(setting)}</p>"]
    parts.append(
        f"<p>Server: {html.escape(results['server'])}. Workload: {html.escape(', '.join(results['workload']))}.</p>"
    )
    parts += [f"<p>{html.escape(line)}</p>" for line in conclusion(results).splitlines()]
    picture_text = "The latency over the load, and the distribution of the latencies; the tables have the numbers."
    parts.append(f'<p><img alt="{picture_text}" src="data:image/png;base64,{base64.b64encode(picture).decode()}"></p>')
    rows = [HEAD, *(row(load, load["generator_limited"]) for load in results["measurements"])]
    parts += ["<h2>Loads</h2>", f"<p>{TARGET.format(results['target_p99_ms'])}</p>", _table("\n".join(rows))]
    parts += [
        "<h2>Distribution of the latency</h2>",
        "<p>Percentiles in ms since a request was due. Failed requests count as infinite.</p>",
        _table(distribution(results["measurements"])),
    ]
    if rates := results.get("generators"):
        parts += ["<h2>Generator</h2>", _table(generators(rates))]
    return "\n".join([HTML_HEAD, *parts, "</html>\n"])


def _table(markdown: str) -> str:
    """Converts a Markdown table, and the lines after it, to HTML."""
    lines = markdown.splitlines()
    rows = [line.replace("**", "").strip("|").split(" | ") for line in lines if line.startswith("| ")]
    kinds = ["th", *(["td"] * (len(rows) - 1))]
    body = "".join(
        f"<tr>{''.join(f'<{kind}>{html.escape(cell.strip())}</{kind}>' for cell in cells)}</tr>"
        for kind, cells in zip(kinds, rows, strict=True)
    )
    table = f'<div class="scroll" tabindex="0"><table>{body}</table></div>'
    return table + "".join(f"<p>{html.escape(line)}" for line in lines if line and line[0] != "|")
