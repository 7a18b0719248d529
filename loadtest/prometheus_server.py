"""Prometheus in a process of its own: it scrapes servers and evaluates the rules of docker/prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).parent.parent / "docker"
CONFIG = DOCKER / "prometheus" / "prometheus.yml"
RULES = DOCKER / "prometheus" / "rules.yml"
DASHBOARD = DOCKER / "grafana" / "dashboard.json"
START_S = 60.0


def installed() -> bool:
    """Whether Prometheus and its tool are on the PATH."""
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


class Prometheus:
    """The API of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: object) -> Any:
        """Returns the data of an API call.

        Raises:
            ValueError: Prometheus cannot evaluate the query.
        """
        query = urllib.parse.urlencode({name: str(value) for name, value in parameters.items()})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as response:  # noqa: S310  # loopback
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the current series of an expression, each with its `metric` and its `value`."""
        samples: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return samples

    def alerts(self) -> dict[str, str]:
        """Returns the state of each active alert: `pending` or `firing`."""
        alerts = sorted(self.get("alerts")["alerts"], key=lambda alert: str(alert["state"]), reverse=True)
        return {alert["labels"]["alertname"]: alert["state"] for alert in alerts}


@contextmanager
def prometheus(targets: Mapping[str, Sequence[int]], interval_s: float) -> Iterator[Prometheus]:
    """Scrapes the ports of each job and evaluates the rules, every `interval_s`."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            for job, ports in targets.items()
        ]
        every = f"{round(1000 * interval_s)}ms"
        settings = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
        config = {"global": settings, "rule_files": ["rules.yml"], "scrape_configs": jobs}
        (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        (directory / "rules.yml").write_text(RULES.read_text())
        command = [
            shutil.which("prometheus") or "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ]
        log_file = directory / "log"
        with log_file.open("w") as log, subprocess.Popen(command, stderr=log, cwd=directory) as process:
            try:
                yield Prometheus(_port(process, log_file))
            finally:
                process.kill()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Waits until Prometheus is ready, and returns its port."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        match = re.search(r'"?Listening on"? address=\S+?:(\d+)', log.read_text())
        if match and "Server is ready" in log.read_text():
            return int(match[1])
        time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not start:\n{log.read_text()}")


def expressions(rate_interval: str, job: str = ".+") -> dict[str, list[tuple[str, str]]]:
    """Returns the dashboard's queries by panel title: expressions and their legends, with the variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {
        panel["title"]: [
            (_fill_in(target["expr"], rate_interval, job), target["legendFormat"]) for target in panel["targets"]
        ]
        for panel in panels
        if panel["type"] != "row"
    }


def _fill_in(expression: str, rate_interval: str, job: str) -> str:
    variables = {"$__rate_interval": rate_interval, "$namespace": ".*", "$instance": ".*", "$job": job}
    for name, value in variables.items():
        expression = expression.replace(name, value)
    return expression
