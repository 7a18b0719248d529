"""Does a server hold its SLO? The highest rate whose p99 is within a target, with an interval; exit status 0 or 1.

    python loadtest/slo.py --p99-ms 250 --at-least 20           starts a server of the embedded models, and searches
    python loadtest/slo.py --p99-ms 250 --url http://host:8000  searches on any server of our format
    python loadtest/slo.py --p99-ms 250 --rate 20 --shape burst --seconds 60     tries one load, and judges that

A request is bad if it was not answered, with all the retries of its client, or later than the target from when it was
due; p99 is within the target where at most 1 % are bad. `verdict.py` says how the highest rate follows from that. It
holds with --at-least where the whole interval is above it. With --out a result is written, as data, page and picture,
and compared with the one that was last committed there.

Where the generator was the limit is told: a load that would have been in time from when its requests were really sent,
or during which the generator had no more processor time to get, says nothing of the server. Before a search both this
generator and wrk, if there is one, ask a server that does nothing, and in a closed loop the one to be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

# Locust changes how the standard library waits, so it comes before all that uses that.
from loadtest.locustfile import ClosedLoop, Load, OpenLoop, add_options, load_of, seconds_of, times_of  # isort: skip

from locust.env import Environment

from loadtest import report, wrk
from loadtest.measurement import Level, bound, tell
from loadtest.server_process import announced, serving
from loadtest.verdict import FLOOR, SHARE, estimate, judge, next_rate
from swiftlet_serve.service.offline.environment import setting
from swiftlet_serve.service.settings import Settings

CALLERS: Final = 32  # of a closed loop
LEAST_REQUESTS: Final = 200  # of a load: with fewer, 1 % is a matter of one
LONGEST: Final = 3  # a load of a low rate lasts longer for that, but no longer than so many times


def offer(load: Load, user: type[OpenLoop] | type[ClosedLoop], users: int = 1) -> float:
    """Lets Locust's users send a load. Returns the share of a core that this took."""
    environment = Environment(user_classes=[user], host=load.url)
    environment.load = load  # type: ignore[attr-defined]  # what our users look for
    runner = environment.create_local_runner()
    wall, processor = time.monotonic(), time.process_time()
    runner.start(users, spawn_rate=users)
    runner.spawning_greenlet.join()
    runner.user_greenlets.join()
    core = (time.process_time() - processor) / (time.monotonic() - wall)
    runner.quit()
    load.close()
    return core


def closed(load: Load, callers: int = CALLERS) -> float:
    """Requests answered a second where each of the callers asks again once it was answered."""
    load.started = time.monotonic()
    offer(load, ClosedLoop, callers)
    ended = max(record.ended for record in load.records)
    return sum(record.status == 200 for record in load.records) / (ended - load.started)


def generators(options: Any, url: str) -> dict[str, dict[str, float | None]]:
    """Requests a second of a closed loop: this generator's and wrk's, of a server that does nothing and of this one."""
    rates: dict[str, dict[str, float | None]] = {}
    with announced("loadtest.null_server") as (null, _), tempfile.TemporaryDirectory() as folder:
        for name, address in {"nothing": null, "server": url}.items():
            load = load_of(options, address, seconds=options.closed_s)
            own, other = closed(load), None
            if shutil.which("wrk"):
                lines = Path(folder, name)
                lines.write_bytes(b"".join(b"%b %b\n" % (load.place(one).encode(), one.data) for one in load.bodies))
                other = wrk.run(address, lines, CALLERS, options.closed_s, load.headers).rate
            rates[name] = {"locust": own, "wrk": other}
    return rates


def wanted(options: Any, levels: Sequence[Level], start: float) -> float | None:
    """The rate that a search tries after these."""
    runs = [one.run for one in levels]
    return next_rate(runs, start, options.resolution, options.repeats, options.most_rate)


def search(options: Any, url: str, start: float) -> list[Level]:
    """Loads of one rate after the other, as `verdict.next_rate` wants them."""
    levels: list[Level] = []
    ends, usual = time.monotonic() + options.budget_s, seconds_of(options, 10.0)
    while time.monotonic() < ends and (rate := wanted(options, levels, start)):
        seconds = min(max(usual, LEAST_REQUESTS / rate), LONGEST * usual)
        levels.append(one_level(options, url, rate, seconds, seed=len(levels) + 1))
    return levels


def one_level(options: Any, url: str, rate: float, seconds: float, seed: int) -> Level:
    load = load_of(options, url, times=times_of(options, rate, seconds, seed), seconds=seconds)
    load.bodies = random.Random(seed).sample(load.bodies, len(load.bodies))
    core = offer(load, OpenLoop)
    done = tell(load.records, load.started, seconds, rate, options.p99_ms, core)
    print(report.row(done), flush=True)
    return done


def measure(options: Any, url: str) -> tuple[bool, dict[str, Any]]:
    """Whether the SLO is held, and everything that was found out."""
    print(f"{report.TARGET.format(options.p99_ms)}\n")
    warm_up = load_of(options, url, seconds=options.closed_s)
    if not closed(warm_up):
        met = ", ".join(f"{record.path}: {record.status}" for record in warm_up.records[:3])
        raise SystemExit(f"Not one request to {url} was answered ({met}; 0: no connection, -1: another answer).")
    found: dict[str, Any] = {"target_p99_ms": options.p99_ms, "arrivals": str(options.trace or options.shape)}
    found["server"] = options.url or f"{options.models or 'the embedded models'} on the engine {options.engine}"
    found["bodies"] = [path.name for path in options.bodies] or [" ".join(["our own mix", *options.task])]
    if options.rate:
        print(report.HEAD)
        levels = [one_level(options, url, options.rate, seconds_of(options, 60.0), 1)]
        most = math.inf if options.most_failed is None else options.most_failed
        holds = levels[0].share <= SHARE and levels[0].failed <= most
        word = "holds" if holds else "does not hold"
    else:
        found["generators"] = generators(options, url)
        print(report.generators(found["generators"]), "\n\n", report.HEAD, sep="")
        levels = search(options, url, options.start or max(FLOOR, found["generators"]["server"]["locust"] / 2))
        best = estimate([one.run for one in levels])
        holds, word = judge(best, options.at_least)
        found["ended"] = wanted(options, levels, math.nan) is None
        found["maximum"] = asdict(best) | {"generator_bound": bound(levels, best.rate)}
    found["levels"] = [asdict(one) | {"generator_bound": one.generator_bound} for one in levels]
    return holds, found | {"holds": holds, "verdict": word, "at_least": options.at_least}


@contextlib.contextmanager
def target(options: Any) -> Iterator[str]:
    """The address of the server to be measured."""
    if options.url:
        yield options.url
        return
    models = options.models.split(",") if options.models else []
    with serving(models, options.engine, "--log-level", "error") as server:
        yield f"http://127.0.0.1:{server.port}"
        server.stop()


def last_committed(path: Path) -> dict[str, Any] | None:
    """What this file was in the last commit that has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "show", f"HEAD:./{path.name}"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, check=False)  # the git of this machine
    return json.loads(done.stdout) if done.returncode == 0 else None


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs; one is started if left out")
    parser.add_argument("--models", default="", help="of the server that is started; every embedded one if left out")
    parser.add_argument("--engine", default=Settings.model_fields["engine"].default, help="of that server")
    parser.add_argument("--p99-ms", type=float, required=True, help="the target")
    parser.add_argument("--at-least", type=float, help="a search holds if it finds this rate to hold")
    parser.add_argument("--most-failed", type=int, help="how many requests of a single load may fail; 1 %% if left out")
    parser.add_argument("--start", type=float, help="the first rate of a search; half of a closed loop's if left out")
    parser.add_argument("--most-rate", type=float, default=math.inf, help="a search tries no higher one")
    parser.add_argument("--closed-s", type=float, default=5.0, help="how long warm-up and closed loops take")
    parser.add_argument("--resolution", type=float, default=1.1, help="how near to each other the last two rates are")
    parser.add_argument("--repeats", type=int, default=3, help="how often these two are tried")
    parser.add_argument("--budget-s", type=float, default=140.0, help="a search begins no load after that")
    parser.add_argument("--out", type=Path, help="where the result is written: a path without its ending")
    add_options(parser)
    return parser.parse_args()


def main() -> None:
    options = _options()
    logging.getLogger("locust").setLevel(logging.ERROR)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # an open loop has many connections
    about = setting("locust", "gevent", "geventhttpclient")
    print(about.told(), "\n")
    with target(options) as url:
        holds, found = measure(options, url)
    found = {"setting": asdict(about)} | found
    if options.out:
        before = last_committed(options.out.with_suffix(".json"))
        found["compared"] = report.compare(found, before) if before else "There is no earlier result to compare with."
        report.write(found, options.out)
    print(f"\n{report.conclusion(found)}")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
