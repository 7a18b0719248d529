"""Finds the highest rate with a server's p99 within a target, and reaches a verdict: exit status 0 or 1.

    python -m loadtest.slo --p99-ms 250 --at-least 20           serves the bundled models, and searches from 20/s
    python -m loadtest.slo --p99-ms 250 --url http://host:8000 --start 5    searches on a running server from 5/s
    python -m loadtest.slo --p99-ms 250 --rate 20 --shape burst --seconds 60     sends one load, and judges it

A request is bad if it failed after all retries, or if its response came later than the target. Time counts from when
the request was due. The p99 is within the target if at most 1 % of the requests are bad. `verdict.py` derives the
highest rate. With --at-least, the SLO holds if the whole confidence interval is at least that rate.

The report names loads that the generator limited. With --calibrate, a closed loop of this generator warms the server
up, as fast as it answers. Before a search, this generator and wrk, if installed, then each run a closed loop against a
server that does nothing and against the measured one. Without --calibrate, no request is sent beyond the load's rate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import uvloop

from loadtest import report, wrk
from loadtest.load import Load, add_options, arrival_times, duration_s, load_of
from loadtest.measurement import Measurement, generator_limited, summarize
from loadtest.server_process import module_server, serving
from loadtest.verdict import MAX_BAD_SHARE, MIN_RATE, estimate, next_rate, verdict
from swiftlet_serve.cli.progress import advance
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.settings import Settings

CALLERS: Final = 32  # of a closed loop
MIN_REQUESTS: Final = 200  # of a load; with fewer, a single request decides about 1 %
MAX_STRETCH: Final = 3  # a load of a low rate lasts longer for MIN_REQUESTS, at most so many times


def run_load(load: Coroutine[Any, Any, None]) -> float:
    """Runs a load to its end. Returns the share of a core that the generator took."""
    wall, cpu = time.monotonic(), time.process_time()
    uvloop.run(load)
    return (time.process_time() - cpu) / (time.monotonic() - wall)


def closed_loop_rate(load: Load, seconds: float) -> float:
    """Returns the requests per second that a closed loop completes."""
    run_load(load.run_closed(CALLERS, seconds))
    ended = max(result.ended for result in load.results)
    return sum(result.status == 200 for result in load.results) / (ended - load.started)


def generator_rates(options: argparse.Namespace, url: str) -> dict[str, dict[str, float | None]]:
    """Returns the closed-loop rates of this generator and of wrk, for a server that does nothing and for this one."""
    rates: dict[str, dict[str, float | None]] = {}
    with module_server("loadtest.null_server") as (null_url, _), tempfile.TemporaryDirectory() as directory:
        for name, server_url in {"null_server": null_url, "server": url}.items():
            load = load_of(options, server_url)
            own, wrk_rate = closed_loop_rate(load, options.closed_s), None
            if shutil.which("wrk"):
                file = Path(directory, name)
                file.write_bytes(b"".join(b"%b %b\n" % (load.path(body).encode(), body.data) for body in load.bodies))
                wrk_rate = wrk.run(server_url, file, CALLERS, options.closed_s, load.headers).rate
            rates[name] = {"python": own, "wrk": wrk_rate}
    return rates


def rate_to_try(options: argparse.Namespace, measurements: Sequence[Measurement], first: float) -> float | None:
    runs = [load.run for load in measurements]
    return next_rate(runs, first, options.resolution, options.repeats, options.most_rate)


def search(options: argparse.Namespace, url: str, first: float) -> list[Measurement]:
    """Measures one rate after another until the search is complete or its time is over."""
    measurements: list[Measurement] = []
    ends, default_s = time.monotonic() + options.budget_s, duration_s(options, 10.0)
    while time.monotonic() < ends and (rate := rate_to_try(options, measurements, first)):
        seconds = min(max(default_s, MIN_REQUESTS / rate), MAX_STRETCH * default_s)
        measurements.append(measure_load(options, url, rate, seconds, seed=len(measurements) + 1))
    return measurements


def measure_load(options: argparse.Namespace, url: str, rate: float, seconds: float, seed: int) -> Measurement:
    load = load_of(options, url, seed)
    times = arrival_times(options, rate, seconds, seed)
    load.on_result = lambda _: advance(len(load.results), len(times))
    cpu_share = run_load(load.run_open(times))
    if seed == 1:  # later loads of a search may be too much for a server that answers
        check_answers(load)
    measurement = summarize(load.results, load.started, seconds, rate, options.p99_ms, cpu_share)
    print(report.row(asdict(measurement), measurement.generator_limited), flush=True)
    return measurement


def check_answers(load: Load) -> None:
    """Checks that a load was not sent to a wrong address.

    Raises:
        SystemExit: no request was answered.
    """
    if load.results and all(result.status != 200 for result in load.results):
        statuses = ", ".join(f"{result.path}: {result.status}" for result in load.results[:3])
        raise SystemExit(f"No request to {load.url} was answered ({statuses}; 0: connection lost, -1: wrong response).")


def warm_up(options: argparse.Namespace, url: str) -> None:
    """Sends a closed loop.

    Raises:
        SystemExit: no request was answered.
    """
    load = load_of(options, url)
    run_load(load.run_closed(CALLERS, options.closed_s))
    check_answers(load)


def measure(options: argparse.Namespace, url: str) -> dict[str, Any]:
    """Measures a server and returns everything that the report shows."""
    print(f"{report.TARGET.format(options.p99_ms)}\n")
    if options.calibrate:
        warm_up(options, url)
    result: dict[str, Any] = {
        "target_p99_ms": options.p99_ms,
        "arrivals": str(options.trace or options.shape),
        "server": options.url or f"{options.models or 'the bundled models'} on the engine {options.engine}",
        "workload": [path.name for path in options.bodies] or [" ".join(["default", *options.task])],
        "at_least": options.at_least,
    }
    if options.rate:
        print(report.HEAD)
        measurements = [measure_load(options, url, options.rate, duration_s(options, 60.0), seed=1)]
        max_failed = math.inf if options.most_failed is None else options.most_failed
        holds = measurements[0].bad_share <= MAX_BAD_SHARE and measurements[0].failed <= max_failed
        text = "holds" if holds else "does not hold"
    else:
        first = options.start or options.at_least
        if options.calibrate:
            rates = result["generators"] = generator_rates(options, url)
            print(report.generators(rates), "\n")
            first = options.start or (rates["server"]["python"] or 0.0) / 2
        print(report.HEAD)
        measurements = search(options, url, max(MIN_RATE, first))
        best = estimate([load.run for load in measurements])
        holds, text = verdict(best, options.at_least)
        result["complete"] = rate_to_try(options, measurements, math.nan) is None
        result["maximum"] = asdict(best) | {"generator_limited": generator_limited(measurements, best.rate)}
    result["measurements"] = [asdict(load) | {"generator_limited": load.generator_limited} for load in measurements]
    return result | {"holds": holds, "verdict": text}


@contextlib.contextmanager
def measured_server(options: argparse.Namespace) -> Iterator[str]:
    """Yields the URL of the server to measure. Starts one if the options name none."""
    if options.url:
        yield options.url
        return
    models = options.models.split(",") if options.models else []
    with serving(models, options.engine, "--log-level", "error") as server:
        yield server.url
        server.stop()


def last_committed(path: Path) -> dict[str, Any] | None:
    """Returns the content of a JSON file in the last commit, or None if it is not in there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "show", f"HEAD:./{path.name}"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine = Settings.model_fields["engine"].default
    add = parser.add_argument
    add("--url", help="URL of a running server. Default: start one.")
    add("--models", default="", help="Models of the started server. Default: all bundled models.")
    add("--engine", default=engine, help=f"Engine of the started server. Default: {engine}.")
    add("--p99-ms", type=float, required=True, help="Target for the 99th percentile, in milliseconds.")
    add("--at-least", type=float, help="Rate that a search must show to hold.")
    add("--most-failed", type=int, help="Maximum failed requests of a single load. Default: 1 %% of them.")
    add("--calibrate", action="store_true", help="First send as fast as the server answers, to warm up and compare.")
    add("--start", type=float, help="First rate of a search. Default: --at-least; after --calibrate half of its rate.")
    add("--most-rate", type=float, default=math.inf, help="Highest rate of a search.")
    add("--closed-s", type=float, default=5.0, help="Duration of each closed loop of --calibrate. Default: 5.")
    add("--resolution", type=float, default=1.1, help="Largest quotient of the last two rates. Default: 1.1.")
    add("--repeats", type=int, default=3, help="Runs of each of the last two rates. Default: 3.")
    add("--budget-s", type=float, default=140.0, help="Seconds after which a search starts no load. Default: 140.")
    add("--out", type=Path, help="Path without suffix for the full result: .json, .png and .html.")
    add("--summary", type=Path, help="JSON file for the summary. Compares with its last committed version.")
    add_options(parser)
    options = parser.parse_args()
    if not (options.rate or options.calibrate or options.start or options.at_least):
        parser.error("a search needs --start, --at-least or --calibrate")
    return options


def main() -> None:
    options = _options()
    if options.out:
        report.require_chart()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # an open loop has many connections
    where = current_environment("httptools")
    print(where.description(), "\n")
    with measured_server(options) as url:
        result = {"setting": asdict(where)} | measure(options, url)
    if options.summary:
        before = last_committed(options.summary)
        result["comparison"] = report.compare(result, before) if before else "There is no earlier result."
        report.write_summary(result, options.summary)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        report.write(result, options.out)
    print(f"\n{report.conclusion(result)}")
    sys.exit(not result["holds"])


if __name__ == "__main__":
    main()
