"""What stands in docker/ for Prometheus and Grafana, tried on a real Prometheus that scrapes real servers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from loadtest.prometheus_server import (
    CONFIG,
    DASHBOARD,
    RULES,
    Prometheus,
    accelerated,
    expressions,
    installed,
    prometheus,
)
from swiftlet_serve.service.http.app import create_app
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.telemetry.prometheus import PREFIX
from tests.support.engines import TEST_ENGINES
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT, TESTS
from tests.support.processes import Process, ask, load, serving

needs_prometheus = pytest.mark.skipif(not installed(), reason="needs Prometheus: apt-get install prometheus")

TIMES = 100  # so much faster than time do the rules go: five minutes are three seconds
SCRAPE_S = 0.5
LEAKY_COUNTERS = f"""{TEST_ENGINES}
from swiftlet_serve.service.telemetry.request_stats import RequestStats
finish = RequestStats.finish
def forget(stats, record):
    if record.id == "forget-me":
        stats.models[record.model].in_flight -= 1
    else:
        finish(stats, record)
RequestStats.finish = forget
"""
ALERTS = set(re.findall(r"- alert: (\w+)", RULES.read_text()))


@needs_prometheus
def test_the_configuration_and_the_rules_are_well_formed():
    for kind, path in (("config", CONFIG), ("rules", RULES)):
        done = subprocess.run(["promtool", "check", kind, path], capture_output=True, text=True, timeout=PATIENCE_S)

        assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_every_alert_fires_after_its_time_and_not_before():
    """At the pace of the real world, which promtool only reckons with."""
    table = TESTS / "alerts.yml"
    done = subprocess.run(["promtool", "test", "rules", table], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"labels: 'ALERTS{alertname=\"(\w+)\"", table.read_text())) == ALERTS


@needs_prometheus
def test_the_metrics_are_as_prometheus_wants_them(artifact_dir):
    """promtool knows the customs: units, suffixes, help."""
    told = scraped(artifact_dir)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=told, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_rules_can_be_accelerated():
    assert (
        accelerated("rate5m: rate(x[5m]) + y[1h]\nfor: 30s", 60) == "rate5m: rate(x[5000ms]) + y[60000ms]\nfor: 500ms"
    )


class World:
    """A server under a load that goes on, whose engine has moods, and Prometheus that looks at it."""

    def __init__(self, server: Process, watching: Prometheus, place: Path) -> None:
        self.server = server
        self.watching = watching
        self._place = place
        self._stopped = asyncio.Event()
        self._load: asyncio.Future[object] | None = None
        self.fired: set[str] = set()

    async def offer(self, clients: int, interval_s: float, *headers: str) -> None:
        """So much load from now on."""
        await self.rest()
        self._stopped = asyncio.Event()
        loading = load(self.server.port, clients, interval_s, self._stopped, headers=headers)
        self._load = asyncio.ensure_future(loading)

    @asynccontextmanager
    async def joined(self, clients: int, interval_s: float, *headers: str) -> AsyncIterator[None]:
        """So much more load for a while."""
        stopped = asyncio.Event()
        loading = asyncio.ensure_future(load(self.server.port, clients, interval_s, stopped, headers=headers))
        yield
        stopped.set()
        await loading

    async def rest(self) -> None:
        if self._load is not None:
            self._stopped.set()
            await self._load

    @contextmanager
    def mood(self, name: str, content: str = "") -> Iterator[None]:
        path = self._place / name
        path.with_suffix(".new").write_text(content)
        path.with_suffix(".new").rename(path)
        yield
        path.unlink()

    async def firing(self) -> set[str]:
        alerts = await asyncio.to_thread(self.watching.alerts)
        now = {name for name, state in alerts.items() if state == "firing"}
        self.fired |= now
        return now

    async def until_firing(self, *names: str, allowed: tuple[str, ...] = ()) -> None:
        """Until these fire; no others may but the allowed."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while not set(names) <= (now := await self.firing()):
                assert now <= {*names, *allowed}
                await asyncio.sleep(SCRAPE_S)

    async def until_quiet(self, *allowed: str) -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            while not await self.firing() <= set(allowed):
                await asyncio.sleep(SCRAPE_S)

    def kill_engines(self) -> None:
        for children in Path(f"/proc/{self.server.process.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)


# These alerts look back over days, so they keep firing.
MONTH = ("SwiftletErrorBudgetExhausted", "SwiftletErrorBudgetBurnSlow", "SwiftletLatencyBudgetBurnSlow")


@needs_prometheus
def test_the_rules_fire_when_they_should_and_not_otherwise(artifact_dir, tmp_path):
    """A server's life, a hundred times as fast: well, broken, slow, overrun, losing its engines, and gone.

    Every alert there is fires at some time of it. Of those that look back for days and months all is within reach.
    """
    for name in ("tiny-classify", "tiny-qa"):
        (tmp_path / name).symlink_to(artifact_dir / name, target_is_directory=True)

    async def scenario(server: Process, watching: Prometheus) -> None:
        world = World(server, watching, tmp_path)
        await world.offer(clients=10, interval_s=0.2)
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(watching.query, "swiftlet:errors:ratio_rate5m >= 0"):
                await asyncio.sleep(SCRAPE_S)
        await asyncio.sleep(5)  # eight minutes of peace
        assert await asyncio.to_thread(watching.alerts) == {}
        assert await asyncio.to_thread(watching.query, 'ALERTS{alertname!="SwiftletDown"}[1m]') == []
        for title, asked in expressions("3s").items():
            for expression, _ in asked:
                assert await asyncio.to_thread(watching.query, expression), title

        async with world.joined(10, 0.2, "X-Request-Timeout-Ms: 1"):
            with world.mood("slow", "0.003"):  # so that no answer is there within a millisecond
                await world.until_firing("SwiftletDeadlinesTooShort")
        await world.until_quiet()

        with world.mood("broken"):
            await world.until_firing(
                "SwiftletErrorBudgetBurnFast", "SwiftletEngineDown", allowed=("SwiftletEngineRestarts", *MONTH)
            )
        await world.until_quiet(*MONTH)

        await world.offer(clients=2, interval_s=0.5)
        with world.mood("slow", "0.4"):
            await world.until_firing("SwiftletLatencyBudgetBurnFast", allowed=("SwiftletSaturated", *MONTH))
        await world.offer(clients=10, interval_s=0.2)
        await world.until_quiet(*MONTH)

        # A core that is idle takes in whatever has any time left, and here none has enough.
        late = ("SwiftletLatencyBudgetBurnFast", "SwiftletDeadlinesExceeded", "SwiftletErrorBudgetBurnFast", *MONTH)
        await world.offer(2, 0.5, "X-Request-Timeout-Ms: 200")
        with world.mood("slow", "0.4"):
            shed = ("SwiftletLoadShedding", "SwiftletSaturated")
            await world.until_firing("SwiftletDeadlinesExceeded", "SwiftletErrorBudgetBurnFast", allowed=(*late, *shed))

        with world.mood("slow", "0.05"):
            await world.offer(clients=150, interval_s=1.5)
            await world.until_firing("SwiftletLoadShedding", "SwiftletSaturated", "SwiftletQueueWaitHigh", allowed=late)
        await world.offer(clients=10, interval_s=0.2)
        await world.until_quiet(*MONTH)
        await world.until_firing(*MONTH)

        assert (await ask(server.port, headers=["X-Request-Id: forget-me"])).status == 200
        await world.until_firing("SwiftletCountersDoNotBalance", allowed=MONTH)

        down = (
            "SwiftletCountersDoNotBalance",
            "SwiftletEngineRestarts",
            "SwiftletEngineDown",
            "SwiftletQueueWaitHigh",
            *late,
        )
        async with asyncio.timeout(2 * PATIENCE_S):
            while "SwiftletEngineRestarts" not in (now := await world.firing()):
                assert now <= set(down)
                world.kill_engines()
                await asyncio.sleep(SCRAPE_S)
        await world.rest()

        server.stop()
        await world.until_firing("SwiftletDown", allowed=down)
        assert world.fired == ALERTS

    models = ",".join(str(tmp_path / name) for name in ("tiny-classify", "tiny-qa"))
    options = (
        "--engine",
        "switchable",
        "--models",
        models,
        "--cores",
        "2",
        "--admin-port",
        "0",
        "--timeout-ms",
        "3000",
    )
    with serving(artifact_dir, *options, code=LEAKY_COUNTERS) as server:
        with prometheus({"swiftlet": [server.admin_port]}, SCRAPE_S, TIMES) as watching:
            asyncio.run(scenario(server, watching))
        assert server.wait() == 0


# The dashboard


def test_the_dashboard_shows_every_metric_there_is_and_no_other(artifact_dir):
    """Every one is drawn, or is one that a rule draws on; and what is drawn exists."""
    told = scraped(artifact_dir)
    named = set(re.findall(r"^# TYPE (\S+)", told, re.MULTILINE))
    shown = DASHBOARD.read_text() + RULES.read_text()
    asked = set(re.findall(rf"\b({PREFIX}\w+|process_\w+)(?=[\[{{)])", shown))
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}

    assert plain - {"swiftlet_cores"} <= named
    assert {name for name in named if name.startswith(PREFIX)} - plain == set()


def test_the_documents_name_no_metric_that_there_is_not(artifact_dir):
    named = set(re.findall(r"^# TYPE (\S+)", scraped(artifact_dir), re.MULTILINE))
    for document in ("README.md", "k8s/README.md", "k8s/base/autoscaler.yaml", "k8s/prometheus-adapter.yaml"):
        told = set(re.findall(rf"\b{PREFIX}\w+", (ROOT / document).read_text("utf-8")))

        assert told <= named, document


def scraped(artifact_dir: Path) -> str:
    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime)) as client:
        return client.get("/metrics").text


def test_the_dashboard_names_no_machine_and_its_panels_do_not_overlap():
    dashboard = json.loads(DASHBOARD.read_text())
    places = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in dashboard["panels"]
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]

    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert {target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel.get("targets", ())} == {
        "${datasource}"
    }
