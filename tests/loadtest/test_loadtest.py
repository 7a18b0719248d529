"""The load tests: when requests come and come again, what follows from runs, and a short run of the whole."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import report
from loadtest.arrivals import BURST, SHAPES, read_trace, replayed, shaped
from loadtest.backoff import FIRST_S, MOST_S, pause
from loadtest.measurement import Level, Record, bound, tell
from loadtest.server_process import serving
from loadtest.verdict import MOST_RUNS, SHARE, Estimate, Run, crossing, estimate, fit, judge, next_rate
from loadtest.workload import MASK, TASKS, Body, mix, read, route
from tests.support.paths import ROOT

RUN_S = 120
WARM = ("--closed-s", "0.5")

seeds = st.integers(0, 2**32)
rates = st.floats(0.5, 500)


# --- when requests come


@given(seeds, st.sampled_from(sorted(SHAPES)))
def test_arrivals_are_in_order_and_in_time(seed, shape):
    times = shaped(shape, 20, 10, random.Random(seed))

    assert times == sorted(times)
    assert all(0 <= time < 10 for time in times)


@given(seeds)
def test_steady_arrivals_have_the_rate_and_the_gaps_of_chance(seed):
    """Gaps of a Poisson process are exponential: their mean is their deviation. 5,000 of them, so 7 sigma is 10 %."""
    times = shaped("steady", 50, 100, random.Random(seed))
    gaps = [after - before for before, after in pairwise(times)]
    mean = fmean(gaps)

    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert math.sqrt(fmean((gap - mean) ** 2 for gap in gaps)) == pytest.approx(mean, rel=0.15)


@pytest.mark.parametrize(
    ("shape", "expected"), [("step", [0.25, 0.5, 0.75, 1.0]), ("burst", [1, 1, BURST, 1, 1]), ("soak", [1, 1])]
)
def test_a_shape_is_the_rate_over_time(shape, expected):
    times = shaped(shape, 100, 100, random.Random(1))
    width = 100 / len(expected)
    counts = [sum(n * width <= time < (n + 1) * width for time in times) for n in range(len(expected))]

    assert [count / width / 100 for count in counts] == pytest.approx(expected, abs=0.1)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=50, unique=True), rates)
def test_a_trace_keeps_its_order_and_gets_the_rate(trace, rate):
    rounds = 3
    times = replayed([moment / 7 for moment in trace], rate, rounds * len(trace) / rate)

    assert times == sorted(times)
    assert abs(len(times) - rounds * len(trace)) <= 1  # of an arrival at the very end, rounding decides
    scale = (times[len(trace) - 1] - times[0]) / (max(trace) - min(trace))
    assert times[: len(trace)] == pytest.approx([scale * (moment - min(trace)) for moment in sorted(trace)])


@pytest.mark.parametrize("trace", [[], [1.0], [2.0, 2.0]])
def test_a_trace_without_duration_is_refused(trace):
    with pytest.raises(ValueError, match="two different moments"):
        replayed(trace, 1, 1)


def test_a_trace_is_read_from_a_file(tmp_path):
    (tmp_path / "trace").write_text("0.5\n3\n\n1e1\n")

    assert read_trace(tmp_path / "trace") == [0.5, 3.0, 10.0]


# --- when they come again


@given(st.integers(0, 50), seeds)
def test_a_client_waits_up_to_a_time_that_doubles(attempt, seed):
    wait = pause(attempt, 0, random.Random(seed))

    assert 0 <= wait <= min(MOST_S, FIRST_S * 2**attempt)


@given(st.integers(0, 50), st.floats(0.01, 3600), seeds)
def test_a_client_never_comes_before_the_server_asked_for_it(attempt, retry_after, seed):
    assert retry_after <= pause(attempt, retry_after, random.Random(seed)) <= 1.1 * retry_after


@pytest.mark.parametrize("retry_after", [0, 1])
def test_clients_that_failed_together_come_back_apart(retry_after):
    assert len({pause(3, retry_after, random.Random(seed)) for seed in range(20)}) == 20


# --- what they ask


def test_our_own_bodies_are_those_of_a_realistic_day():
    bodies = mix(2000)
    lengths = sorted(len(json.loads(body.data)["inputs"].split()) for body in bodies if body.path == "/classify")

    assert all(route(body.data) == body.path for body in bodies)
    for path, share in TASKS.items():
        assert sum(body.path == path for body in bodies) / len(bodies) == pytest.approx(share, abs=0.04)
    assert lengths[len(lengths) // 2] < 30 < 100 < lengths[int(0.97 * len(lengths))]
    assert mix(50) == mix(50)
    assert mix(50) != mix(50, seed=2)


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        ("a", "/classify"),
        (["a", "b"], "/classify"),
        ({"text": "a", "text_pair": "b"}, "/classify"),
        (f"a {MASK}", "/fill-mask"),
        ([f"a {MASK}"], "/fill-mask"),
        ({"question": "a", "context": f"b {MASK}"}, "/qa"),
        ([{"question": "a", "context": "b"}], "/qa"),
    ],
)
def test_a_body_goes_where_its_form_belongs(tmp_path, inputs, path):
    body = json.dumps({"inputs": inputs}).encode()
    (tmp_path / "bodies").write_bytes(body + b"\n\n")

    assert read([tmp_path / "bodies"]) == [Body(path, body)]


@pytest.mark.parametrize("line", [b"[]", b"{}", b"1"])
def test_what_is_no_body_is_refused(line):
    with pytest.raises(ValueError, match="needs inputs"):
        route(line)


def test_bodies_of_some_tasks_only_are_asked_for_by_name():
    assert {body.path for body in mix(200, tasks=["/qa", "/classify"])} == {"/qa", "/classify"}


def test_an_answer_to_something_else_is_none():
    assert Body("/qa", b"").answered(b'{"score": 1, "answer": ""}')
    assert not Body("/qa", b"").answered(b'[[{"label": "A"}]]')


# --- what becomes of them

records = st.builds(
    lambda path, due, late, took, status: Record(path, due, due + late, due + late + took, status, 1),
    st.sampled_from(sorted(TASKS)),
    st.floats(100, 109.9),
    st.floats(0, 1),
    st.floats(0, 2),
    st.sampled_from([200, 200, 200, 0, 503, -1]),
)


@given(st.lists(records, min_size=1, max_size=300), st.integers(1, 2000))
def test_p99_is_within_a_target_where_at_most_one_percent_are_bad(several, target_ms):
    level = tell(several, 100, 10, 30, target_ms)

    assert level.share == pytest.approx(sum(one.took > target_ms / 1000 for one in several) / len(several))
    assert (sum(level.run.asked), sum(level.statuses.values())) == (len(several), len(several))
    assert sum(level.run.bad) == round(level.share * len(several)) >= level.failed
    assert (level.p99_ms <= target_ms) == (level.share <= SHARE)
    assert level.share_sent <= level.share


@pytest.mark.parametrize(
    ("late", "took", "core", "expected"),
    [
        (0.0, 0.1, 0.5, (0.0, False)),
        (0.0, 0.9, 0.5, (1.0, False)),  # the server's fault
        (0.9, 0.1, 0.5, (1.0, True)),  # the generator's
        (0.9, 0.9, 0.5, (1.0, False)),  # both's, and the server's alone would do
        (0.0, 0.9, 0.95, (1.0, True)),  # nobody knows: the generator had no time to look
    ],
)
def test_a_load_tells_whose_fault_it_was(late, took, core, expected):
    level = tell([Record("/qa", 0.5, 0.5 + late, 0.5 + late + took, 200, 1)] * 10, 0, 1, 10, 500, core)

    assert (level.share, level.generator_bound) == expected


def test_a_rate_is_the_generators_limit_where_nothing_else_failed_above_it():
    def level(rate: float, late: float, took: float) -> Level:
        return tell([Record("/qa", 0.5, 0.5 + late, 0.5 + late + took, 200, 1)] * 10, 0, 1, rate, 500)

    held, late, slow = level(90, 0.0, 0.1), level(120, 0.9, 0.1), level(110, 0.0, 0.9)

    assert bound([held, late], 100)
    assert not bound([held, late, slow], 100)
    assert bound([held, slow, late], 115)
    assert not bound([held], 100)
    assert not bound([], 100)


# --- what follows from runs


def run(rate: float, share: float, pick: random.Random | None = None, seconds: int = 20) -> Run:
    """A run in which that share of the requests is bad, by chance or exactly."""
    asked = (max(1, round(rate)),) * seconds
    if pick:
        return Run(rate, asked, tuple(sum(pick.random() < share for _ in range(count)) for count in asked))
    return Run(rate, asked, tuple(round(share * count) for count in asked))


runs = st.lists(
    st.builds(
        lambda rate, pairs: Run(rate, tuple(a for a, _ in pairs), tuple(min(a, b) for a, b in pairs)),
        st.sampled_from([10.0, 20.0, 30.0, 50.0, 80.0]),
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=8,
)


@given(runs)
def test_the_curve_rises_and_keeps_the_mean_of_the_medians(several):
    curve = fit(several)

    assert [rate for rate, _ in curve] == sorted({run.rate for run in several})
    assert all(before <= after + 1e-12 for (_, before), (_, after) in pairwise(curve))
    weights = {rate: sum(sum(run.asked) for run in several if run.rate == rate) for rate, _ in curve}
    medians = {rate: median(run.share for run in several if run.rate == rate) for rate in weights}
    assert sum(share * weights[rate] for rate, share in curve) == pytest.approx(
        sum(medians[rate] * weights[rate] for rate in weights)
    )


def test_a_curve_that_rises_already_is_left_alone():
    assert fit([run(10, 0), run(200, 0.02), run(100, 0.01)]) == [(10, 0), (100, 0.01), (200, 0.02)]


def test_one_bad_moment_of_three_does_not_decide():
    assert fit([run(100, 0), run(100, 0.5), run(100, 0)]) == [(100, 0)]


@given(runs)
def test_the_rate_found_lies_in_its_interval_and_is_no_higher_than_what_was_tried(several):
    found = estimate(several, draws=40)

    assert 0 <= found.low <= found.rate <= found.high <= max(run.rate for run in several)
    assert found.open == (fit(several)[-1][1] <= SHARE)


@given(runs, st.floats(0.01, 100))
def test_the_unit_of_the_rate_does_not_matter(several, factor):
    scaled = [Run(factor * run.rate, run.asked, run.bad) for run in several]

    assert crossing(fit(scaled)) == pytest.approx(factor * crossing(fit(several)))


def test_the_crossing_lies_where_the_share_is_one_percent():
    assert crossing([(100, 0.0), (200, 0.02)]) == 150
    assert crossing([(100, 0.0), (200, 0.01)]) == 200
    assert crossing([(100, 0.5)]) == 0


def test_the_interval_has_the_true_rate_about_as_often_as_it_says():
    """The bad share grows from nothing at 80/s by 1 % for each 20/s, so that the truth is 100."""
    hits = 0
    for seed in range(40):
        pick = random.Random(seed)
        several = [run(rate, max(0, rate - 80) / 2000, pick) for rate in (60, 90, 95, 105, 110, 140) for _ in range(3)]
        found = estimate(several, draws=100, seed=seed)
        hits += found.low <= 100 <= found.high

    assert hits / 40 >= 0.85


@given(st.floats(1, 1000), st.floats(1, 1000), st.integers(1, 4))
def test_a_search_ends_and_finds_what_a_server_holds(limit, start, repeats):
    """A server that answers everything up to its limit and nothing above."""
    several: list[Run] = []
    while rate := next_rate(several, start, 1.15, repeats):
        several.append(run(rate, 1.0 if rate > limit else 0.0))

    assert len(several) < MOST_RUNS
    passed = max(run.rate for run in several if run.rate <= limit)
    failed = min(run.rate for run in several if run.rate > limit)
    assert failed / passed <= 1.15
    assert all(sum(run.rate == rate for run in several) == repeats for rate in (passed, failed))
    found = estimate(several, draws=20)
    assert (found.low, found.high) == (passed, failed)
    assert passed <= found.rate <= failed


def test_a_search_gives_up_on_a_server_that_holds_nothing():
    several: list[Run] = []
    while rate := next_rate(several, 10, 1.1, 3):
        several.append(run(rate, 1.0))

    assert judge(estimate(several, draws=20), None) == (False, "does not hold at any rate tried")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, (True, "holds")),
        (80, (True, "holds")),
        (90, (True, "holds")),
        (100, (False, "is not shown to hold")),
        (120, (False, "does not hold")),
    ],
)
def test_only_what_is_shown_holds(wanted, expected):
    assert judge(Estimate(100, 90, 110, open=False), wanted) == expected


def test_where_no_rate_failed_a_higher_one_is_not_refuted():
    assert judge(Estimate(100, 90, 100, open=True), 120) == (False, "is not shown to hold")


@pytest.mark.parametrize(
    ("low", "high", "told"), [(121, 140, "higher than"), (110, 130, "no different"), (50, 79, "LOWER than")]
)
def test_a_result_differs_from_the_last_where_the_intervals_do(low, high, told):
    def found(low: float, high: float, machine: str = "a") -> dict[str, object]:
        setting = {"date": "2026-01-01", "commit": "abc", "machine": machine}
        maximum = {"rate": (low + high) / 2, "low": low, "high": high}
        load = {"target_p99_ms": 1, "arrivals": "steady", "bodies": [], "server": "ours"}
        return {"setting": setting, "maximum": maximum} | load

    assert told in report.compare(found(low, high), found(80, 120))
    assert "another machine" in report.compare(found(low, high), found(80, 120, "b"))
    assert "quotient" not in report.compare(found(low, high), found(0, 0))
    for other in ({"target_p99_ms": 2}, {"server": "another"}):
        assert "not compared" in report.compare(found(low, high), found(80, 120) | other)


# --- the whole of it

ASK = """
import json, sys, time
from loadtest import locustfile
from loadtest.workload import Body
url, retries, give_up_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
load = locustfile.Load(url, [Body("/classify", b"{}")], retries=retries, give_up_s=give_up_s)
record = load.ask(time.monotonic())
print(json.dumps([record.status, record.attempts]))
"""


class Quiet(BaseHTTPRequestHandler):
    """Says nothing of what it does."""

    def log_message(self, *_: object) -> None:
        pass


class Patient(ThreadingHTTPServer):
    request_queue_size = 128  # the closed loops' callers all come at once, each time anew


@contextmanager
def answering(handler: type[Quiet]) -> Iterator[str]:
    """The address of a server that is none of ours, for as long as a block lasts."""
    with Patient(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("script", "retries", "expected"),
    [
        (["503 0", "200"], 2, [200, 2]),
        (["lost", "429 0", "200"], 2, [200, 3]),
        (["200"], 2, [200, 1]),
        (["503 0", "503 0", "502 0", "200"], 2, [502, 3]),  # it has asked as often as it may
        (["422 0", "200"], 2, [422, 1]),  # that would fail again
        (["503 3600", "200"], 2, [503, 1]),  # by then nobody waits
        (["wrong", "200"], 2, [-1, 1]),
    ],
    ids=str,
)
def test_a_client_asks_again_as_often_and_as_long_as_it_may(script, retries, expected):
    told: list[str] = []

    class Scripted(Quiet):
        def do_POST(self) -> None:
            told.append(said := script[len(told)])
            self.rfile.read(int(self.headers["Content-Length"]))
            if said == "lost":
                self.close_connection = True
                return
            status, _, retry_after = said.partition(" ")
            answer = b"{}" if status == "wrong" else b'[[{"label": "A", "score": 1.0}]]'
            self.send_response(200 if status == "wrong" else int(status))
            self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with answering(Scripted) as address:
        command = [sys.executable, "-c", ASK, address, str(retries), "60"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
    assert told == script[: expected[1]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    models = ["mobilebert-sst2", "mobilebert-qa", "mobilebert-fill-mask"]
    with serving(models, "echo", "--log-level", "error", "--spare-engine", "false") as server:
        yield f"http://127.0.0.1:{server.port}"


def slo(*options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: Locust changes the standard library of the one it is in."""
    command = [sys.executable, "-m", "loadtest.slo", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)


def test_a_load_that_is_answered_in_time_holds_and_is_written_down(url, tmp_path):
    out = tmp_path / "new" / "result"
    done = slo("--url", url, *WARM, "--rate", "20", "--seconds", "3", "--p99-ms", "30000", "--out", str(out))

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("SLO: HOLDS\n")
    found = json.loads(out.with_suffix(".json").read_text("utf-8"))
    (level,) = found["levels"]
    assert level["statuses"] == {"200": sum(level["run"]["asked"])}
    assert level["p99_by_route"].keys() == TASKS.keys()
    assert found["setting"]["versions"].keys() >= {"locust", "swiftlet-serve", "Python"}
    assert "data:image/png;base64," in out.with_suffix(".html").read_text("utf-8")


def test_a_load_that_is_answered_too_late_does_not_hold(url):
    done = slo("--url", url, *WARM, "--rate", "20", "--seconds", "1", "--p99-ms", "0.001")

    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "SLO: DOES NOT HOLD"), done.stderr


def test_a_search_on_a_server_finds_a_rate(url, tmp_path):
    done = slo(
        *("--url", url, "--p99-ms", "30000", "--start", "10", "--seconds", "0.5", "--repeats", "1"),
        *("--most-rate", "20", "--out", str(tmp_path / "result"), *WARM),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["maximum"]["open"]
    assert found["generators"]["nothing"]["locust"] > 0


@contextmanager
def foreign(answer: bytes) -> Iterator[tuple[str, set[str]]]:
    """A server that is none of ours: its address, and all paths that it was asked for.

    It has /v1/classify and nothing else, speaks HTTP/1.0, and ends each connection after its answer.
    """
    asked: set[str] = set()

    class Foreign(Quiet):
        def parse_request(self) -> bool:
            understood = super().parse_request()
            asked.add(self.path)
            return understood

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200 if self.path == "/v1/classify" else 404)
            self.end_headers()
            self.wfile.write(answer)

    with answering(Foreign) as address:
        yield f"{address}/v1", asked


def test_a_search_needs_no_more_of_a_server_than_the_route_of_a_task(tmp_path):
    with foreign(b'[[{"label": "A", "score": 1.0}]]') as (address, asked):
        done = slo(
            *("--url", address, "--task", "classify", "--p99-ms", "30000", "--start", "10", "--seconds", "0.5"),
            *("--repeats", "1", "--most-rate", "20", "--out", str(tmp_path / "result"), *WARM),
        )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["bodies"] == ["our own mix classify"]
    assert [level["statuses"].keys() for level in found["levels"]] == [{"200": 0}.keys()] * 2
    assert asked == {"/v1/classify"}


@pytest.mark.parametrize(
    ("more", "answer", "told"),
    [("/elsewhere", b"", "/classify: 404"), ("", b'{"result": "A"}', "/classify: -1")],
)
def test_a_server_that_answers_nothing_is_told_and_not_measured(more, answer, told):
    with foreign(answer) as (address, _):
        done = slo("--url", address + more, "--task", "classify", "--p99-ms", "1000", "--retries", "0", *WARM)

    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert told in done.stderr
    assert "Not one request" in done.stderr


def test_locusts_own_command_takes_the_same_load(url):
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "OpenLoop", "--host", url, "--headless"]
    done = subprocess.run(
        [*command, "--only-summary", "--rate", "20", "--seconds", "1", "--shape", "burst"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert all(task in done.stderr + done.stdout for task in TASKS)
