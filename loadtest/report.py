"""What a load test found out, as text, as a page and as a picture."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loadtest.verdict import SHARE, fit
from loadtest.verdict import Run as _Run
from swiftlet_serve.service.offline.environment import other_work

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
    "asked again",
    "generator",
)
HEAD: Final = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def cells(level: Any) -> list[str]:
    """A load, as a row of the table."""
    generator = f"{level.late_ms:.0f} ms late, {level.core:.0%} of a core"
    return [
        f"{level.rate:.1f}",
        f"{level.offered:.1f}",
        f"{level.seconds:.0f}",
        f"{level.p50_ms:.0f}",
        f"{level.p99_ms:.0f}",
        ", ".join(f"{path} {time:.0f}" for path, time in level.p99_by_route.items()),
        f"{level.share:.1%}",
        ", ".join(f"{count} × {status}" for status, count in level.statuses.items() if status != "200") or "0",
        str(level.again),
        f"**the limit**: {generator}" if level.generator_bound else generator,
    ]


def row(level: Any) -> str:
    return f"| {' | '.join(cells(level))} |"


def generators(rates: Mapping[str, Mapping[str, float | None]]) -> str:
    """What the two generators manage, and so which of them may be believed."""
    lines = ["| closed loop, requests/s | this generator | wrk | quotient |", "|---|---|---|---|"]
    for name, of in {"a server that does nothing": rates["nothing"], "this server": rates["server"]}.items():
        own, other = of["locust"] or 0.0, of["wrk"]
        compared = f"{other:.0f} | {own / other:.2f}" if other else "not installed | –"
        lines.append(f"| {name} | {own:.0f} | {compared} |")
    own, ceiling = rates["server"]["locust"] or 0.0, rates["nothing"]["locust"] or 0.0
    if own > ceiling / 2:
        lines += ["", f"This server answers so fast that this generator is near its own limit of {ceiling:.0f}/s."]
    else:
        lines += ["", f"This generator could ask {ceiling / max(own, 1e-9):.0f} times as fast as this server answers."]
    return "\n".join(lines)


def conclusion(found: Mapping[str, Any]) -> str:
    """The verdict in a few sentences."""
    lines = []
    if maximum := found.get("maximum"):
        more = " or more: no rate failed" if maximum["open"] else ""
        lines.append(
            f"Highest rate with p99 ≤ {found['target_p99_ms']:g} ms: {maximum['rate']:.1f} requests/s "
            f"(95 % interval {maximum['low']:.1f} to {maximum['high']:.1f}){more}."
        )
        if not found["ended"]:
            lines.append("The search ended with its time: not every rate was tried as often as it should.")
        if maximum["generator_bound"]:
            lines.append("The generator was the limit, not the server, which may manage more.")
    else:
        (level,) = found["levels"]
        lines.append(f"p99 {level['p99_ms']:.0f} ms at {level['offered']:.1f} requests/s, {level['share']:.1%} bad.")
        lines.append(f"From the first to the last tenth of the time p99 went {_drift(level['slices'])}.")
        if level["generator_bound"]:
            lines.append("The generator was the limit, not the server.")
    lines += other_work(found["setting"]["load"], found["setting"]["cores"])
    if compared := found.get("compared"):
        lines.append(compared)
    wanted = f" at {found['at_least']:g} requests/s" if found["at_least"] else ""
    return "\n".join([*lines, f"SLO{wanted}: {found['verdict'].upper()}"])


def _drift(slices: list[float]) -> str:
    return f"from {slices[0]:.0f} to {slices[-1]:.0f} ms"


def compare(found: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """What changed since an earlier result: only what the intervals show."""
    now, then = found.get("maximum"), before.get("maximum")
    about = f"{before['setting']['date']} (commit {before['setting']['commit']})"
    same = ("target_p99_ms", "arrivals", "bodies", "server")
    if not (now and then) or any(found[name] != before[name] for name in same):
        return f"The result of {about} is of another load, and not compared."
    figures = f"{then['rate']:.1f} ({then['low']:.1f} to {then['high']:.1f}) on {about}"
    elsewhere = "" if found["setting"]["machine"] == before["setting"]["machine"] else ", on another machine"
    if now["low"] > then["high"]:
        change = "higher than"
    elif now["high"] < then["low"]:
        change = "LOWER than"
    else:
        change = "no different, as far as this shows, from"
    quotient = f"; quotient {now['rate'] / then['rate']:.2f}" if then["rate"] else ""
    return f"That is {change} {figures}{elsewhere}{quotient}."


def write(found: Mapping[str, Any], path: Path) -> None:
    """Data, page and picture, under one name."""
    path.with_suffix(".json").write_text(json.dumps(_finite(found), indent=1, ensure_ascii=False) + "\n", "utf-8")
    draw(found, path.with_suffix(".png"))
    path.with_suffix(".html").write_text(page(found, path.with_suffix(".png").read_bytes()), "utf-8")


def _finite(value: Any) -> Any:
    """JSON has no infinity: null."""
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def draw(found: Mapping[str, Any], path: Path) -> None:
    """A search over the rates, or one load over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2 if "maximum" in found else 1, figsize=(10, 4), layout="constrained")
    if "maximum" in found:
        _draw_search(found, *axes)
    else:
        (level,) = found["levels"]
        x = [(slot + 0.5) * level["seconds"] / len(level["slices"]) for slot in range(len(level["slices"]))]
        axes.plot(x, level["slices"], marker="o")
        axes.axhline(found["target_p99_ms"], color="grey", linestyle="--", label="target")
        axes.set(xlabel="seconds", ylabel="p99, ms", yscale="log")
        axes.legend()
    figure.suptitle(
        f"{found['setting']['date']}, {found['setting']['commit']}, {found['setting']['machine']}", fontsize=8
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_search(found: Mapping[str, Any], times: Any, shares: Any) -> None:
    levels, maximum = found["levels"], found["maximum"]
    rates = [level["rate"] for level in levels]
    for name in ("p50_ms", "p99_ms"):
        shown = [level[name] if math.isfinite(level[name]) else float("nan") for level in levels]
        times.plot(rates, shown, "o", label=name.removesuffix("_ms"))
    times.axhline(found["target_p99_ms"], color="grey", linestyle="--", label="target")
    times.set(xlabel="requests/s", ylabel="ms", yscale="log")
    curve = fit([_Run(level["rate"], level["run"]["asked"], level["run"]["bad"]) for level in levels])
    shares.plot(rates, [100 * level["share"] for level in levels], "o", label="a load")
    shares.plot([rate for rate, _ in curve], [100 * share for _, share in curve], label="fitted")
    shares.axhline(100 * SHARE, color="grey", linestyle="--", label="1 %")
    shares.set(xlabel="requests/s", ylabel="bad requests, %", yscale="symlog", ylim=(0, 100))
    for axes in (times, shares):
        axes.axvspan(maximum["low"], maximum["high"], alpha=0.2, label="highest rate, 95 %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


STYLE: Final = "body{font:16px sans-serif;max-width:70em;margin:2em auto}td,th{padding:.2em .8em;text-align:right}"


def page(found: Mapping[str, Any], picture: bytes) -> str:
    """One file that needs no other."""
    setting = found["setting"]
    versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    about = (
        f"{setting['date']}, commit {setting['commit']}. {setting['machine']}, load {setting['load']:.1f}. {versions}."
    )
    parts = [f"<h1>Load test: {html.escape(found['verdict'])}</h1>", f"<p>{html.escape(about)}</p>"]
    parts.append(f"<p>Of {html.escape(found['server'])}, with {html.escape(', '.join(found['bodies']))}.</p>")
    parts += [f"<p>{html.escape(line)}</p>" for line in conclusion(found).splitlines()]
    parts.append(f'<p><img alt="" src="data:image/png;base64,{base64.b64encode(picture).decode()}"></p>')
    if rates := found.get("generators"):
        parts.append(_table(generators(rates)))
    rows = [HEAD, *(row(_Shown(level)) for level in found["levels"])]
    parts += [f"<p>{TARGET.format(found['target_p99_ms'])}</p>", _table("\n".join(rows))]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>Load test</title><style>{STYLE}</style>"
    return "\n".join([head, *parts, "</html>\n"])


class _Shown:
    """A load that was data."""

    def __init__(self, level: Mapping[str, Any]) -> None:
        self.__dict__.update(level)


def _table(markdown: str) -> str:
    """A table of markdown, and what follows it, in HTML."""
    lines = markdown.splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if line.startswith("| ")]
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell.strip())}' for cell in cells)}" for cells in rows)
    return f"<table>{body}</table>" + "".join(f"<p>{html.escape(line)}" for line in lines if line and line[0] != "|")
