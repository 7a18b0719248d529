"""Draws the panels of the Grafana dashboard from the answers of a real Prometheus, after a load.

    python -m loadtest.dashboard docker/grafana/dashboard.png

Prometheus scrapes a server of the bundled models during a load of classify, qa and fill-mask. The load is low, then
above the server's capacity, then low again while the worker process is killed. Needs Prometheus
(`apt-get install prometheus`) and the extra `plot`, and no Grafana: the queries, legends and titles are the
dashboard's own.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.arrivals import poisson
from loadtest.generator import open_loop
from loadtest.prometheus_server import DASHBOARD, Prometheus, expressions, prometheus
from loadtest.server_process import ServerProcess, process_tree, serving
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes

SCRAPE_S, STEP_S = 1.0, 1.0
PHASES = ((15, 40), (15, 1200), (20, 40))  # seconds, requests per second
KILL_PHASE, KILL_AFTER_S = 2, 8.0
ABANDONED_SHARE, ABANDON_AFTER_S = 0.03, 0.005
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

Queries: TypeAlias = list[tuple[str, str]]
Panel: TypeAlias = Callable[[Axes, Prometheus, Queries, float, float, str], None]


async def send_load(url: str, seconds: float, rate: float, draw: random.Random) -> None:
    """Sends an open loop, each request on a connection of its own. Clients abandon some of them."""
    client = Client(url)
    requests = [
        request_bytes(path, json.dumps(body).encode(), {"x-request-timeout-ms": "2000"}, close=True)
        for path, body in BODIES
    ]

    async def send(_: float) -> None:
        patience_s = ABANDON_AFTER_S if draw.random() < ABANDONED_SHARE else None
        try:
            async with asyncio.timeout(patience_s):
                await client.send(draw.choice(requests))
        except (ConnectionLost, OSError, TimeoutError):
            pass

    await open_loop(poisson(rate, seconds, draw), send)


async def run_phases(server: ServerProcess) -> None:
    """Sends the load of each phase, and kills the worker process in one of them."""
    draw = random.Random(0)
    for number, (seconds, rate) in enumerate(PHASES):
        phase = asyncio.ensure_future(send_load(server.url, seconds, rate, draw))
        if number == KILL_PHASE:
            await asyncio.sleep(KILL_AFTER_S)
            os.kill(process_tree(server.pid)[1], signal.SIGKILL)
        await phase


def draw_dashboard(source: Prometheus, began: float, ended: float, path: Path) -> None:
    panels = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text())["panels"]}
    queries = expressions(rate_interval="5s")
    rows = math.ceil(len(queries) / COLUMNS)
    mpl.rcParams.update({"font.size": 7, "axes.titlesize": 8, "axes.titleweight": "bold"})
    figure = Figure(figsize=(5 * COLUMNS, 2.6 * rows), dpi=80, layout="constrained")
    for axes, (title, own) in zip(figure.subplots(rows, COLUMNS).flat, queries.items(), strict=False):
        axes.set_title(title)
        unit = panels[title]["fieldConfig"]["defaults"]["unit"]
        PANELS.get(panels[title]["type"], lines)(axes, source, own, began, ended, unit)
    for axes in list(figure.axes)[len(queries) :]:
        axes.set_visible(False)
    figure.savefig(path, metadata={"Software": None})


def series(source: Prometheus, query: str, began: float, ended: float) -> list[dict[str, Any]]:
    """Returns the series of a query over time.

    Raises:
        SystemExit: there is no series, and the panel would be empty.
    """
    lines = source.get("query_range", query=query, start=began, end=ended, step=STEP_S)["result"]
    if not lines:
        raise SystemExit(f"No data: {query}")
    return list(lines)


def lines(axes: Axes, source: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    scale, suffix = {"s": (1000, " ms"), "percentunit": (100, " %"), "bytes": (1e-6, " MB")}.get(unit, (1, ""))
    for query, legend in queries:
        for line in series(source, query, began, ended):
            points = [(float(at) - began, scale * float(value)) for at, value in line["values"]]
            if "{{" not in legend or any(value for _, value in points if not math.isnan(value)):
                axes.plot(*zip(*points, strict=True), linewidth=1, label=fill_legend(legend, line["metric"]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{suffix}")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, ended - began)
    axes.grid(alpha=0.3)
    if axes.get_lines():
        axes.legend(fontsize=6, loc="upper left", ncols=2)


def stat(axes: Axes, source: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    ((query, _),) = queries
    value = float(series(source, query, began, ended)[0]["values"][-1][1])
    axes.text(0.5, 0.5, f"{100 * value:.1f} %" if unit == "percentunit" else f"{value:g}", size=26, ha="center")
    axes.axis("off")


def heatmap(axes: Axes, source: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    ((query, _),) = queries
    buckets = sorted(series(source, query, began, ended), key=lambda bucket: float(bucket["metric"]["le"]))
    times = sorted({at for bucket in buckets for at, _ in bucket["values"]})
    counts = [[float(dict(bucket["values"]).get(at, 0)) for at in times] for bucket in buckets]
    below = [[0.0] * len(times), *counts]
    cells = [[max(0.0, a - b) for a, b in zip(*rows, strict=True)] for rows in zip(counts, below, strict=False)]
    axes.imshow(cells, origin="lower", aspect="auto", cmap="viridis")
    axes.set_yticks(range(0, len(buckets), 4), [bucket["metric"]["le"] + " s" for bucket in buckets[::4]])
    axes.set_xlabel(unit)


def table(axes: Axes, source: Prometheus, queries: Queries, began: float, ended: float, unit: str) -> None:
    ((query, _),) = queries
    names = ("model", "architecture", "precision", "engine")
    rows = [[line["metric"][name] for name in names] for line in series(source, query, began, ended)]
    axes.table(rows, colLabels=names, loc="center").scale(1, 1.2)
    axes.axis("off")
    axes.set_xlabel(unit)


def fill_legend(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace("{{" + name + "}}", value)
    return legend


PANELS: dict[str, Panel] = {"stat": stat, "heatmap": heatmap, "table": table}


def main() -> None:
    (path,) = map(Path, sys.argv[1:])
    with serving([], "native", "--admin-port", "0") as server:
        if server.admin_port is None:
            raise SystemExit("The server has no admin port.")
        with prometheus({"swiftlet": [server.admin_port]}, SCRAPE_S) as source:
            began = time.time()
            asyncio.run(run_phases(server))
            draw_dashboard(source, began, time.time(), path)


if __name__ == "__main__":
    main()
