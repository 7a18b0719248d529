"""Draws the panels of the Grafana dashboard from what a real Prometheus answers to their queries, after a load.

    python loadtest/dashboard.py docker/grafana/dashboard.png

A server of the embedded models is scraped while clients ask all three tasks: some of the time few, then more than it
can do, then few again, while its engine is killed. Needs Prometheus (`apt-get install prometheus`) and the extra
`plot`. There is no Grafana in this: the queries, their legends and the titles are the dashboard's own.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.generator import Connection, Lost, payload
from loadtest.prometheus_server import DASHBOARD, Prometheus, expressions, prometheus
from loadtest.server_process import Served, serving

SCRAPE_S, STEP_S = 1.0, 1.0
PHASES = ((15, 40), (15, 1200), (20, 40))  # seconds, requests a second
COLUMNS = 4
BODIES = (
    ("/classify", {"inputs": "A warm, funny and clever film."}),
    (
        "/classify",
        {"inputs": ["It was long.", "It was longer than anything that I have seen in years, and duller."]},
    ),
    ("/classify", {"inputs": "Dull.", "model": "mobilebert-sst2"}),
    ("/qa", {"inputs": {"question": "Where does Clara live?", "context": "Clara is a baker. She lives in Bern."}}),
    ("/fill-mask", {"inputs": "Paris is the [MASK] of France."}),
    ("/fill-mask", {"inputs": "A sentence without any mask."}),
)


async def offer(port: int, seconds: float, rate: float, draw: random.Random) -> None:
    """Sends requests at random times, each on a connection of its own, whether or not earlier ones were answered."""
    loop = asyncio.get_running_loop()
    requests = [payload(path, json.dumps(body).encode(), {"x-request-timeout-ms": "2000"}) for path, body in BODIES]
    due, end, open_ = loop.time(), loop.time() + seconds, set()
    while max(due, loop.time()) < end:
        await asyncio.sleep(due - loop.time())
        one = loop.create_task(ask(port, draw.choice(requests), draw.random() < 0.03))
        open_.add(one)
        one.add_done_callback(open_.discard)
        due += draw.expovariate(rate)
    if open_:
        await asyncio.wait(open_)


async def ask(port: int, request: bytes, hang_up: bool) -> None:
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        if hang_up:
            loop.call_later(0.005, connection.close)
        await connection.ask(request)
        connection.close()
    except (Lost, OSError):
        pass


async def live(server: Served) -> None:
    """What happens to the server."""
    draw = random.Random(0)
    for number, (seconds, rate) in enumerate(PHASES):
        phase = asyncio.ensure_future(offer(server.port, seconds, rate, draw))
        if number == 2:
            await asyncio.sleep(8)
            os.kill(server.family()[1], signal.SIGKILL)
        await phase


def draw(watching: Prometheus, began: float, ended: float, path: Path) -> None:
    kinds = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text())["panels"]}
    asked = expressions(rate_interval="5s")
    rows = math.ceil(len(asked) / COLUMNS)
    mpl.rcParams.update({"font.size": 7, "axes.titlesize": 8, "axes.titleweight": "bold"})
    figure = Figure(figsize=(5 * COLUMNS, 2.6 * rows), dpi=80, layout="constrained")
    for axes, (title, queries) in zip(figure.subplots(rows, COLUMNS).flat, asked.items(), strict=False):
        axes.set_title(title)
        unit = kinds[title]["fieldConfig"]["defaults"]["unit"]
        PANELS.get(kinds[title]["type"], lines)(axes, watching, queries, began, ended, unit)
    for axes in list(figure.axes)[len(asked) :]:
        axes.set_visible(False)
    figure.savefig(path, metadata={"Software": None})


def series(watching: Prometheus, query: str, began: float, ended: float) -> list[dict[str, Any]]:
    """What a query comes to over time. Raises SystemExit where that is nothing: a panel would stay empty."""
    found = watching.get("query_range", query=query, start=began, end=ended, step=STEP_S)["result"]
    if not found:
        raise SystemExit(f"no data: {query}")
    return list(found)


def lines(axes: Axes, watching: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    scale, suffix = {"s": (1000, " ms"), "percentunit": (100, " %"), "bytes": (1e-6, " MB")}.get(unit, (1, ""))
    for query, legend in queries:
        for one in series(watching, query, began, ended):
            points = [(float(at) - began, scale * float(value)) for at, value in one["values"]]
            if "{{" not in legend or any(value for _, value in points if not math.isnan(value)):
                axes.plot(*zip(*points, strict=True), linewidth=1, label=named(legend, one["metric"]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{suffix}")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, ended - began)
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend(fontsize=6, loc="upper left", ncols=2)


def stat(axes: Axes, watching: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    ((query, _),) = queries
    value = float(series(watching, query, began, ended)[0]["values"][-1][1])
    axes.text(0.5, 0.5, f"{100 * value:.1f} %" if unit == "percentunit" else f"{value:g}", size=26, ha="center")
    axes.axis("off")


def heatmap(axes: Axes, watching: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    ((query, _),) = queries
    found = sorted(series(watching, query, began, ended), key=lambda one: float(one["metric"]["le"]))
    times = sorted({at for one in found for at, _ in one["values"]})
    counts = [[float(dict(one["values"]).get(at, 0)) for at in times] for one in found]
    below = [[0.0] * len(times), *counts]
    cells = [[max(0.0, a - b) for a, b in zip(*rows, strict=True)] for rows in zip(counts, below, strict=False)]
    axes.imshow(cells, origin="lower", aspect="auto", cmap="viridis")
    axes.set_yticks(range(0, len(found), 4), [one["metric"]["le"] + " s" for one in found[::4]])
    axes.set_xlabel(unit)


def table(axes: Axes, watching: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    ((query, _),) = queries
    names = ("model", "architecture", "precision", "engine")
    rows = [[one["metric"][name] for name in names] for one in series(watching, query, began, ended)]
    axes.table(rows, colLabels=names, loc="center").scale(1, 1.2)
    axes.axis("off")
    axes.set_xlabel(unit)


def named(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    return legend


Queries = list[tuple[str, str]]
PANELS = {"stat": stat, "heatmap": heatmap, "table": table}


def main() -> None:
    (path,) = map(Path, sys.argv[1:])
    with (
        serving([], "native", "--admin-port", "0") as server,
        prometheus({"swiftlet": [server.admin_port]}, SCRAPE_S) as watching,
    ):
        began = time.time()
        asyncio.run(live(server))
        draw(watching, began, time.time(), path)


if __name__ == "__main__":
    main()
