"""The commands of the load test, each in a short run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from loadtest.server_process import serving
from loadtest.workload import TASKS
from tests.loadtest.servers import http10_server
from tests.support.paths import ROOT
from tests.support.tiers import first

RUN_S = 120
CALIBRATE = ("--calibrate", "--closed-s", "0.3")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    models = ["mobilebert-sst2", "mobilebert-qa", "mobilebert-fill-mask"]
    with serving(models, "echo", "--log-level", "error", "--spare-engine", "false") as server:
        yield server.url


def slo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest.slo", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)


def test_slo_holds_if_a_load_is_answered_in_time(url, tmp_path):
    out, summary = tmp_path / "new" / "result", tmp_path / "other" / "summary.json"
    files = ("--out", str(out), "--summary", str(summary))
    done = slo("--url", url, *CALIBRATE, "--rate", "20", "--seconds", "2", "--p99-ms", "30000", *files)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("SLO: HOLDS\n")
    found = json.loads(out.with_suffix(".json").read_text("utf-8"))
    (measurement,) = found["measurements"]
    assert measurement["statuses"] == {"200": sum(measurement["run"]["requests"])}
    assert measurement["p99_ms_by_route"].keys() == TASKS.keys()
    assert found["setting"]["versions"].keys() >= {"httptools", "uvloop", "swiftlet-serve", "Python"}
    assert found["comparison"] == "There is no earlier result."
    assert "data:image/png;base64," in out.with_suffix(".html").read_text("utf-8")
    assert json.loads(summary.read_text("utf-8"))["verdict"] == "holds"


def test_slo_does_not_hold_if_a_load_is_answered_too_late(url):
    done = slo("--url", url, *CALIBRATE, "--rate", "20", "--seconds", "1", "--p99-ms", "0.001")

    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "SLO: DOES NOT HOLD"), done.stderr


def test_search_finds_a_rate(url, tmp_path):
    done = slo(
        *("--url", url, "--p99-ms", "30000", "--start", "10", "--seconds", "0.5", "--repeats", "1"),
        *("--most-rate", "20", "--out", str(tmp_path / "result"), *CALIBRATE),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["maximum"]["unbounded"]
    assert found["generators"]["null_server"]["python"] > 0


@pytest.mark.exhaustive
def test_search_needs_one_route_of_a_server(tmp_path):
    with http10_server(b'[[{"label": "A", "score": 1.0}]]') as (url, paths):
        done = slo(
            *("--url", url, "--task", "classify", "--p99-ms", "30000", "--start", "10", "--seconds", "0.5"),
            *("--repeats", "1", "--most-rate", "20", "--out", str(tmp_path / "result")),
        )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["workload"] == ["default classify"]
    assert [one["statuses"].keys() for one in found["measurements"]] == [{"200": 0}.keys()] * 2
    assert set(paths) == {"/v1/classify"}
    assert "generators" not in found


@pytest.mark.exhaustive
def test_no_request_exceeds_the_asked_rate_without_calibration(tmp_path):
    options = ("--task", "classify", "--p99-ms", "30000", "--rate", "20", "--seconds", "1", "--retries", "0")
    with http10_server(b'[[{"label": "A", "score": 1.0}]]') as (url, paths):
        done = slo("--url", url, *options, "--out", str(tmp_path / "result"))
        without = len(paths)
        calibrated = slo("--url", url, *options, *CALIBRATE)

    assert (done.returncode, calibrated.returncode) == (0, 0), done.stdout + done.stderr + calibrated.stderr
    (measurement,) = json.loads((tmp_path / "result.json").read_text("utf-8"))["measurements"]
    assert without == sum(measurement["run"]["requests"])
    assert len(paths) > 2 * without, "the closed loop of --calibrate"


def test_search_needs_a_first_rate():
    done = slo("--url", "http://nowhere.invalid", "--p99-ms", "1000")

    assert (done.returncode, "a search needs --start, --at-least or --calibrate" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "first", [("--rate", "20", "--seconds", "1"), pytest.param(CALIBRATE, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    ("suffix", "body", "expected"),
    [("/elsewhere", b"", "/classify: 404"), ("", b'{"result": "A"}', "/classify: -1")],
)
def test_slo_reports_a_server_that_answers_no_request(suffix, body, expected, first):
    with http10_server(body) as (url, _):
        done = slo("--url", url + suffix, "--task", "classify", "--p99-ms", "1000", "--retries", "0", *first)

    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert expected in done.stderr
    assert "No request to" in done.stderr


# The open loop ends the run when it has sent all requests. A run of the closed loop ends by the time.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("user", "run_time"), first([("OpenLoop", "60"), ("ClosedLoop", "3")], ("OpenLoop", "60")))
def test_locust_sends_the_same_load(url, user, run_time):
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", user, "--host", url, "--headless"]
    options = ["--only-summary", "--rate", "20", "--seconds", "1", "--shape", "burst", "--run-time", run_time]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)

    assert done.returncode == 0, done.stderr
    assert all(task in done.stderr + done.stdout for task in TASKS)
