"""Alert rules and dashboard in docker/, tested with Prometheus and the metrics of a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from starlette.testclient import TestClient

from loadtest.prometheus_server import (
    CONFIG,
    DASHBOARD,
    RULES,
    expressions,
    installed,
    prometheus,
)
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.prometheus import PREFIX
from tests.support.alert_timeline import RULE_TESTS_ENVIRONMENT, Scrape, Timeline
from tests.support.engines import TEST_ENGINES
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT, TESTS
from tests.support.processes import Process, ask, load, serving
from tests.support.repositories import example_state

needs_prometheus = pytest.mark.skipif(not installed(), reason="needs Prometheus: apt-get install prometheus")

LEAKY_COUNTERS = f"""{TEST_ENGINES}
from swiftlet_serve.telemetry.request_stats import RequestStats
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
OF_A_REPLICA = {"SwiftletReplicaDown", "SwiftletReplicaEngineDown"}
"""Alerts that need a second server, which alerts.yml has."""
OF_A_REPOSITORY = {"SwiftletModelLoadFailed", "SwiftletRepositoryUnreachable"}
"""Alerts that need a model repository, which alerts.yml has."""
REPOSITORY_METRICS = re.compile(rf"{PREFIX}(model_loads|model_version|models_bytes|repository|shadow)")
"""Names of the metrics of a model repository, which the live server has not."""


@needs_prometheus
def test_configuration_and_rules_are_valid():
    for kind, path in (("config", CONFIG), ("rules", RULES)):
        done = subprocess.run(["promtool", "check", kind, path], capture_output=True, text=True, timeout=PATIENCE_S)

        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive
@needs_prometheus
def test_alerts_fire_at_the_expected_times():
    """promtool evaluates the cases of alerts.yml in real time, without waiting."""
    table = TESTS / "alerts.yml"
    command = ["promtool", "test", "rules", table]
    done = subprocess.run(command, env=RULE_TESTS_ENVIRONMENT, capture_output=True, text=True, timeout=120)

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


@pytest.mark.exhaustive
@needs_prometheus
async def test_prometheus_scrapes_a_server(artifact_dir):
    with (
        serving(artifact_dir, "--admin-port", "0") as process,
        prometheus({"swiftlet": [process.admin_port]}, interval_s=0.1) as monitor,
    ):
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(monitor.query, "swiftlet_engine_ready == 1"):
                await asyncio.sleep(0.1)

        assert [one["value"][1] for one in await asyncio.to_thread(monitor.query, "up")] == ["1"]


class MonitoredServer:
    """A server whose engine faults can be switched, and the timeline of its metrics."""

    def __init__(self, process: Process, directory: Path) -> None:
        self.process = process
        self.timeline = Timeline()
        self._directory = directory

    async def scrape(self) -> Scrape:
        response = await ask(self.process.admin_port, "/metrics", None)
        return Scrape.parse(response.body.decode(), time.monotonic())

    async def until(self, holds: Callable[[Scrape], bool]) -> Scrape:
        """Scrapes the server until a condition holds. Returns the last scrape."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(now := await self.scrape()):
                await asyncio.sleep(0.05)
        return now

    async def send(self, count: int, *headers: str, clients: int = 2) -> None:
        """Sends requests, one after another per client."""

        async def work() -> None:
            for _ in range(count // clients):
                await ask(self.process.port, headers=headers)

        await asyncio.gather(*(work() for _ in range(clients)))

    async def recover(self, minutes: int = 45) -> None:
        """Adds minutes with five requests per second and no fault to the timeline, once the engine is ready."""
        before = await self.until(lambda now: now.total("swiftlet_engine_ready") == 1)
        await self.send(100)
        self.timeline.extend(minutes, before, await self.scrape(), repeats=3)

    @contextmanager
    def fault(self, name: str, content: str = "") -> Iterator[None]:
        """Switches a fault of the engine on inside the block."""
        path = self._directory / name
        path.with_suffix(".new").write_text(content)
        path.with_suffix(".new").rename(path)
        yield
        path.unlink()

    @asynccontextmanager
    async def load(self, clients: int, interval_s: float) -> AsyncIterator[None]:
        """Sends load inside the block."""
        stopped = asyncio.Event()
        loading = asyncio.ensure_future(load(self.process.port, clients, interval_s, stopped))
        yield
        stopped.set()
        await loading

    def kill_workers(self) -> None:
        for children in Path(f"/proc/{self.process.process.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


# These alerts look back over days or a month, so they keep firing.
LONG_WINDOW = ("SwiftletErrorBudgetExhausted", "SwiftletErrorBudgetBurnSlow", "SwiftletLatencyBudgetBurnSlow")
FAULT_MIN = 60


@needs_prometheus
@pytest.mark.exhaustive  # alerts.yml has all alerts
def test_alerts_fire_on_faults_of_a_live_server_and_only_then(artifact_dir, tmp_path):
    """The server is healthy, broken, slow, overloaded, without worker processes and down.

    A few requests are sent in each state. promtool repeats their rates for minutes or hours of simulated time. Every
    alert fires at some point. Alerts that look back over days see the whole scenario.
    """
    for name in ("tiny-classify", "tiny-qa"):
        (tmp_path / name).symlink_to(artifact_dir / name, target_is_directory=True)
    models = ",".join(str(tmp_path / name) for name in ("tiny-classify", "tiny-qa"))
    options = ("--engine", "switchable", "--models", models, "--cores", "2")
    options += ("--admin-port", "0", "--timeout-ms", "3000", "--spare-engine", "true")
    with serving(artifact_dir, *options, code=LEAKY_COUNTERS) as process:
        timeline = asyncio.run(run_scenario(MonitoredServer(process, tmp_path)))
        assert process.wait() == 0

    assert timeline.fired == ALERTS - OF_A_REPLICA - OF_A_REPOSITORY
    status, output = timeline.test(tmp_path)
    assert status == 0, output


async def run_scenario(server: MonitoredServer) -> Timeline:
    timeline = server.timeline

    def record(before: Scrape, after: Scrape, *names: str, allowed: Collection[str] = ()) -> None:
        timeline.extend(FAULT_MIN, before, after)
        timeline.expect_firing(*names, allowed=(*allowed, *LONG_WINDOW), within_minutes=FAULT_MIN)

    await server.recover()
    timeline.expect_firing(within_minutes=timeline.minutes)
    for queries in expressions("5m").values():
        for expression, _ in queries:
            if not REPOSITORY_METRICS.search(expression):
                timeline.expect_data(expression)

    before = await server.scrape()
    with server.fault("slow", "0.003"):  # no response takes less than 1 ms
        await asyncio.gather(server.send(100), server.send(100, "X-Request-Timeout-Ms: 1"))
    record(before, await server.scrape(), "SwiftletDeadlinesTooShort")
    await server.recover()
    timeline.expect_firing()

    before = await server.scrape()
    with server.fault("broken"):
        while (after := await server.scrape()).total("swiftlet_engine_ready") == 1:
            await server.send(2)
    down = ("SwiftletErrorBudgetBurnFast", "SwiftletEngineDown")
    record(before, after, *down, allowed=["SwiftletEngineRestarts"])
    await server.recover()
    timeline.expect_firing(allowed=LONG_WINDOW)

    before = await server.scrape()
    with server.fault("slow", "0.4"):
        await server.send(6)
        record(before, await server.scrape(), "SwiftletLatencyBudgetBurnFast", allowed=["SwiftletSaturated"])
    await server.recover()
    timeline.expect_firing(allowed=LONG_WINDOW)

    # An idle core admits any request with time left, but no request has enough time here.
    before = after = await server.scrape()
    with server.fault("slow", "0.4"):
        while after.total("swiftlet_deadline_exceeded_total") < before.total("swiftlet_deadline_exceeded_total") + 4:
            await server.send(2, "X-Request-Timeout-Ms: 200")
            after = await server.scrape()
    overdue = ("SwiftletDeadlinesExceeded", "SwiftletErrorBudgetBurnFast")
    record(before, after, *overdue, allowed=["SwiftletLoadShedding", "SwiftletSaturated"])
    await server.recover()
    timeline.expect_firing(allowed=LONG_WINDOW)

    with server.fault("slow", "0.05"):
        async with server.load(clients=150, interval_s=1.5):
            before = await server.until(lambda now: now.total("swiftlet_queue_wait_seconds") > 1)
            after = await server.until(lambda now: is_overloaded(before, now))
    overload = ("SwiftletLoadShedding", "SwiftletSaturated", "SwiftletQueueWaitHigh")
    record(before, after, *overload, allowed=("SwiftletLatencyBudgetBurnFast", *overdue))
    await server.recover(minutes=120)
    timeline.expect_firing(*LONG_WINDOW)

    before = await server.scrape()
    assert (await ask(server.process.port, headers=["X-Request-Id: leak-me"])).status == 200
    record(before, await server.scrape(), "SwiftletCountersDoNotBalance")

    before = await server.scrape()
    with server.fault("wrong"):
        await server.send(2)
        after = await server.until(lambda now: now.total("swiftlet_kernel_wrong_sums_total") == 1)
    record(before, after, "SwiftletKernelWrongSums", allowed=["SwiftletCountersDoNotBalance", "SwiftletEngineRestarts"])

    before = await server.scrape()
    restarts = before.total("swiftlet_engine_restarts_total") + 3

    def restarted(now: Scrape) -> bool:
        server.kill_workers()  # each time, because a process may not have been started yet
        return now.total("swiftlet_engine_restarts_total") >= restarts

    after = await server.until(restarted)
    lasting = ("SwiftletCountersDoNotBalance", "SwiftletEngineDown", "SwiftletKernelWrongSums")
    record(before, after, "SwiftletEngineRestarts", allowed=lasting)

    server.process.stop()
    timeline.end(FAULT_MIN)
    timeline.expect_firing("SwiftletDown", allowed=(*lasting, "SwiftletEngineRestarts", *LONG_WINDOW))
    return timeline


def is_overloaded(before: Scrape, now: Scrape) -> bool:
    """Whether the queue is long, requests have been refused and the cores have been busy since a scrape."""

    def growth(name: str, **labels: str) -> float:
        return now.total(name, **labels) - before.total(name, **labels)

    seconds = now.time_s - before.time_s
    return (
        now.total("swiftlet_queue_wait_seconds") > 1
        and growth("swiftlet_requests_refused_total", reason="overloaded") > 50
        and seconds > 2
        and growth("swiftlet_engine_busy_seconds_total") > 0.95 * seconds * now.total("swiftlet_engine_cores")
    )


def test_each_alert_leads_to_its_section_of_the_documentation():
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    page = (ROOT / "docs/how-to/alerts.md").read_text("utf-8")

    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == [alert["alert"] for alert in alerts]
    for alert in alerts:
        assert alert["annotations"]["runbook_url"].endswith(f"/how-to/alerts.html#{alert['alert'].lower()}")
        assert (
            f"- **Severity**: {alert['labels']['severity']}\n"
            in page.split(f"## {alert['alert']}\n")[1].split("## ")[0]
        )


# The dashboard


def test_dashboard_and_rules_use_every_metric_and_no_unknown_one(artifact_dir):
    named = set(re.findall(r"^# TYPE (\S+)", scrape_metrics(artifact_dir), re.MULTILINE))
    text = DASHBOARD.read_text() + RULES.read_text()
    used = set(re.findall(rf"\b({PREFIX}\w+|process_\w+)(?=[\[{{)])", text))
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}

    assert plain - {"swiftlet_engine_cores"} <= named
    assert {name for name in named if name.startswith(PREFIX)} - plain == set()


def test_documents_name_only_existing_metrics(artifact_dir):
    named = set(re.findall(r"^# TYPE (\S+)", scrape_metrics(artifact_dir), re.MULTILINE))
    for document in ("README.md", "k8s/README.md", "k8s/keda/scaledobject.yaml"):
        found = set(re.findall(rf"\b{PREFIX}\w+", (ROOT / document).read_text("utf-8")))

        assert found - {"swiftlet_engine_cores"} <= named, document


def scrape_metrics(artifact_dir: Path) -> str:
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    runtime.use_repository(SimpleNamespace(state=example_state))
    runtime.stats.add_model("tiny-classify", "classify", 2)
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
