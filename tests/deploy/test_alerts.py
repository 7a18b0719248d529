"""Alert rules and dashboard in docker/, tested with a real Prometheus that scrapes real servers."""

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

SPEEDUP = 100  # of the rules: five minutes take three seconds
SCRAPE_S = 0.5
LEAKY_COUNTERS = f"""{TEST_ENGINES}
from swiftlet_serve.service.telemetry.request_stats import RequestStats
finish = RequestStats.finish
def leak(stats, record):
    if record.id == "leak-me":
        stats.models[record.model].in_flight -= 1
    else:
        finish(stats, record)
RequestStats.finish = leak
"""
"""Code for a server process: the counters lose every request with the id leak-me."""
ALERTS = set(re.findall(r"- alert: (\w+)", RULES.read_text()))


@needs_prometheus
def test_configuration_and_rules_are_valid():
    for kind, path in (("config", CONFIG), ("rules", RULES)):
        done = subprocess.run(["promtool", "check", kind, path], capture_output=True, text=True, timeout=PATIENCE_S)

        assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_alerts_fire_at_the_expected_times():
    """promtool evaluates the cases of alerts.yml in real time, without waiting."""
    table = TESTS / "alerts.yml"
    done = subprocess.run(["promtool", "test", "rules", table], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"labels: 'ALERTS{alertname=\"(\w+)\"", table.read_text())) == ALERTS


@needs_prometheus
def test_metrics_follow_the_conventions_of_prometheus(artifact_dir):
    """promtool checks units, suffixes and help texts."""
    metrics = scrape_metrics(artifact_dir)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_rules_can_be_accelerated():
    rules = "rate5m: rate(x[5m]) + y[1h]\nfor: 30s"

    assert accelerated(rules, 60) == "rate5m: rate(x[5000ms]) + y[60000ms]\nfor: 500ms"


class MonitoredServer:
    """A server under load whose engine faults can be switched, and the Prometheus that scrapes it."""

    def __init__(self, process: Process, monitor: Prometheus, directory: Path) -> None:
        self._process = process
        self.monitor = monitor
        self._directory = directory
        self._stopped = asyncio.Event()
        self._load: asyncio.Future[object] | None = None
        self.fired: set[str] = set()

    async def set_load(self, clients: int, interval_s: float, *headers: str) -> None:
        """Replaces the load."""
        await self.stop_load()
        self._stopped = asyncio.Event()
        loading = load(self._process.port, clients, interval_s, self._stopped, headers=headers)
        self._load = asyncio.ensure_future(loading)

    @asynccontextmanager
    async def extra_load(self, clients: int, interval_s: float, *headers: str) -> AsyncIterator[None]:
        """Adds load inside the block."""
        stopped = asyncio.Event()
        loading = asyncio.ensure_future(load(self._process.port, clients, interval_s, stopped, headers=headers))
        yield
        stopped.set()
        await loading

    async def stop_load(self) -> None:
        if self._load is not None:
            self._stopped.set()
            await self._load

    @contextmanager
    def fault(self, name: str, content: str = "") -> Iterator[None]:
        """Switches a fault of the engine on inside the block."""
        path = self._directory / name
        path.with_suffix(".new").write_text(content)
        path.with_suffix(".new").rename(path)
        yield
        path.unlink()

    async def firing(self) -> set[str]:
        alerts = await asyncio.to_thread(self.monitor.alerts)
        now = {name for name, state in alerts.items() if state == "firing"}
        self.fired |= now
        return now

    async def until_firing(self, *names: str, allowed: tuple[str, ...] = ()) -> None:
        """Waits until these alerts fire. Only they and the allowed ones may fire meanwhile."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while not set(names) <= (now := await self.firing()):
                assert now <= {*names, *allowed}
                await asyncio.sleep(SCRAPE_S)

    async def until_quiet(self, *allowed: str) -> None:
        """Waits until no other alerts than the allowed ones fire."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while not await self.firing() <= set(allowed):
                await asyncio.sleep(SCRAPE_S)

    def kill_workers(self) -> None:
        for children in Path(f"/proc/{self._process.process.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)


# These alerts look back over days or a month, so they keep firing.
LONG_WINDOW = ("SwiftletErrorBudgetExhausted", "SwiftletErrorBudgetBurnSlow", "SwiftletLatencyBudgetBurnSlow")


@needs_prometheus
def test_alerts_fire_on_faults_of_a_live_server_and_only_then(artifact_dir, tmp_path):
    """The server is healthy, broken, slow, overloaded, without worker processes and down, a hundred times accelerated.

    Every alert fires at some point. Alerts that look back over days see the whole scenario.
    """
    for name in ("tiny-classify", "tiny-qa"):
        (tmp_path / name).symlink_to(artifact_dir / name, target_is_directory=True)

    async def scenario(process: Process, monitor: Prometheus) -> None:
        server = MonitoredServer(process, monitor, tmp_path)
        await server.set_load(clients=10, interval_s=0.2)
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(monitor.query, "swiftlet:errors:ratio_rate5m >= 0"):
                await asyncio.sleep(SCRAPE_S)
        await asyncio.sleep(5)  # eight minutes without a fault
        assert await asyncio.to_thread(monitor.alerts) == {}
        assert await asyncio.to_thread(monitor.query, 'ALERTS{alertname!="SwiftletDown"}[1m]') == []
        for title, queries in expressions("3s").items():
            for expression, _ in queries:
                assert await asyncio.to_thread(monitor.query, expression), title

        async with server.extra_load(10, 0.2, "X-Request-Timeout-Ms: 1"):
            with server.fault("slow", "0.003"):  # no response takes less than 1 ms
                await server.until_firing("SwiftletDeadlinesTooShort")
        await server.until_quiet()

        with server.fault("broken"):
            await server.until_firing(
                "SwiftletErrorBudgetBurnFast", "SwiftletEngineDown", allowed=("SwiftletEngineRestarts", *LONG_WINDOW)
            )
        await server.until_quiet(*LONG_WINDOW)

        await server.set_load(clients=2, interval_s=0.5)
        with server.fault("slow", "0.4"):
            await server.until_firing("SwiftletLatencyBudgetBurnFast", allowed=("SwiftletSaturated", *LONG_WINDOW))
        await server.set_load(clients=10, interval_s=0.2)
        await server.until_quiet(*LONG_WINDOW)

        # An idle core admits any request with time left, but no request has enough time here.
        overdue = (
            "SwiftletLatencyBudgetBurnFast",
            "SwiftletDeadlinesExceeded",
            "SwiftletErrorBudgetBurnFast",
            *LONG_WINDOW,
        )
        await server.set_load(2, 0.5, "X-Request-Timeout-Ms: 200")
        with server.fault("slow", "0.4"):
            shed = ("SwiftletLoadShedding", "SwiftletSaturated")
            await server.until_firing(
                "SwiftletDeadlinesExceeded", "SwiftletErrorBudgetBurnFast", allowed=(*overdue, *shed)
            )

        with server.fault("slow", "0.05"):
            await server.set_load(clients=150, interval_s=1.5)
            await server.until_firing(
                "SwiftletLoadShedding", "SwiftletSaturated", "SwiftletQueueWaitHigh", allowed=overdue
            )
        await server.set_load(clients=10, interval_s=0.2)
        await server.until_quiet(*LONG_WINDOW)
        await server.until_firing(*LONG_WINDOW)

        assert (await ask(process.port, headers=["X-Request-Id: leak-me"])).status == 200
        await server.until_firing("SwiftletCountersDoNotBalance", allowed=LONG_WINDOW)

        down = (
            "SwiftletCountersDoNotBalance",
            "SwiftletEngineRestarts",
            "SwiftletEngineDown",
            "SwiftletQueueWaitHigh",
            *overdue,
        )
        async with asyncio.timeout(2 * PATIENCE_S):
            while "SwiftletEngineRestarts" not in (now := await server.firing()):
                assert now <= set(down)
                server.kill_workers()
                await asyncio.sleep(SCRAPE_S)
        await server.stop_load()

        process.stop()
        await server.until_firing("SwiftletDown", allowed=down)
        assert server.fired == ALERTS

    models = ",".join(str(tmp_path / name) for name in ("tiny-classify", "tiny-qa"))
    options = ("--engine", "switchable", "--models", models, "--cores", "2")
    options += ("--admin-port", "0", "--timeout-ms", "3000")
    with serving(artifact_dir, *options, code=LEAKY_COUNTERS) as process:
        with prometheus({"swiftlet": [process.admin_port]}, SCRAPE_S, SPEEDUP) as monitor:
            asyncio.run(scenario(process, monitor))
        assert process.wait() == 0


# The dashboard


def test_dashboard_and_rules_use_every_metric_and_no_unknown_one(artifact_dir):
    named = set(re.findall(r"^# TYPE (\S+)", scrape_metrics(artifact_dir), re.MULTILINE))
    text = DASHBOARD.read_text() + RULES.read_text()
    used = set(re.findall(rf"\b({PREFIX}\w+|process_\w+)(?=[\[{{)])", text))
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}

    assert plain - {"swiftlet_cores"} <= named
    assert {name for name in named if name.startswith(PREFIX)} - plain == set()


def test_documents_name_only_existing_metrics(artifact_dir):
    named = set(re.findall(r"^# TYPE (\S+)", scrape_metrics(artifact_dir), re.MULTILINE))
    for document in ("README.md", "k8s/README.md", "k8s/base/autoscaler.yaml", "k8s/prometheus-adapter.yaml"):
        found = set(re.findall(rf"\b{PREFIX}\w+", (ROOT / document).read_text("utf-8")))

        assert found <= named, document


def scrape_metrics(artifact_dir: Path) -> str:
    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime)) as client:
        return client.get("/metrics").text


def test_dashboard_uses_the_datasource_variable_and_its_panels_do_not_overlap():
    dashboard = json.loads(DASHBOARD.read_text())
    cells = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in dashboard["panels"]
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert {target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel.get("targets", ())} == {
        "${datasource}"
    }
