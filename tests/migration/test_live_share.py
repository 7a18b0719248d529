"""The live share copies requests to an existing service, and never touches an answer."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from types import SimpleNamespace

import httpx2
import pytest
from click.testing import CliRunner
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.app import wrap
from swiftlet_serve.migration import live_share
from swiftlet_serve.migration.request_log import Entry, LogWriter, entries
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry import endpoint_metrics, prometheus
from swiftlet_serve.telemetry.endpoint_stats import BUCKETS_S, COUNTERS, EndpointStats
from tests.migration.test_shadow import SECRET, service
from tests.support.apps import make_runtime

BODY = {"inputs": f"{SECRET} 서울 e\u0301 🎬", "parameters": {"top_k": 2}}


class Live:
    """A server that copies its requests to a stand-in."""

    def __init__(self, artifact_dir, url: str, **settings) -> None:
        paths = settings.pop("shadow_paths", ("/classify",))
        self.runtime = make_runtime(
            artifact_dir, shadow_url=url, shadow_paths=paths, **{"shadow_share": 1.0} | settings
        )
        gate = live_share.create_public_gate(self.runtime, None, ())
        self.app = wrap(gate, self.runtime)
        self.share = gate._on_response.__self__
        self.stats = self.runtime.stats.endpoint

    async def __aenter__(self) -> Live:
        await self.runtime.open()
        transport = httpx2.ASGITransport(self.app)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://swiftlet")
        return self

    async def __aexit__(self, *_) -> None:
        await self.client.aclose()
        await self.runtime.close()

    async def ask(self, n: int = 1, **options) -> list[httpx2.Response]:
        return [await self.client.post("/classify", **{"json": BODY} | options) for _ in range(n)]

    async def settle(self) -> None:
        while self.share._tasks:
            await asyncio.wait(self.share._tasks)


async def answer_of(artifact_dir) -> bytes:
    async with Live(artifact_dir, "http://127.0.0.1:1", shadow_share=1e-9) as live:
        return (await live.ask())[0].content


async def test_copies_are_compared_and_reported(artifact_dir, tmp_path):
    key, log = tmp_path / "key", tmp_path / "log.jsonl"
    key.write_text("the-key\n")
    answer = await answer_of(artifact_dir)
    other = json.dumps([[{"label": "no such label", "score": 0.9}]]).encode()
    answers = [other] + [answer] * 199
    with service(lambda _: (200, answers.pop())) as existing:
        async with Live(artifact_dir, existing.url + "/base", shadow_key_file=key, shadow_log=log) as live:
            headers = {"authorization": "Bearer a-client's", "cookie": "a=b", "x-request-id": "one"}
            for _ in range(5):
                await live.ask(40, headers=headers)
                await live.settle()
            await live.ask(1, headers={"x-shadow-copy": "1"})  # from another server that copies
            await live.client.post(
                "/qa", json={"inputs": {"question": "a?", "context": "b"}}
            )  # no route of the setting
            await live.settle()
            page = (await prometheus.scrape(live.runtime)).body.decode()
            again = await answer_of(artifact_dir)

    assert again == answer
    assert len(existing.seen) == 200
    assert {(path, sent, json.dumps(body)) for path, sent, body in existing.seen} == {
        ("/base/classify", "Bearer the-key", json.dumps(BODY))
    }
    assert SECRET not in page
    sides = endpoint_metrics.read([page, page]).sides
    assert [sides[name].outcomes for name in sides] == [{"200": 400}, {"200": 400}]
    with service(None) as metrics:
        metrics.RequestHandlerClass = type("Page", (metrics.RequestHandlerClass,), {"do_GET": _page(page)})
        arguments = ["shadow-report", metrics.url, "--existing-price", "0.5/1k-requests", "--least-agreement"]
        report = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "0.97"])
        strict = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "0.99"])
    assert (report.exit_code, strict.exit_code) == (0, 1), report.output
    assert "# Live share\n\nThe candidate may take over." in report.output
    assert "| label | 99.50 % | 97.22 to 100.00 % | 200 | 200 |" in report.output
    assert "| Cost of 1,000 requests | 0.5000 | – |" in report.output
    assert "may not take over: its agreement may be below 99 %" in strict.output
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    stored = list(entries(log, Entry))
    assert len(stored) == 200
    assert {(entry.path, json.dumps(entry.body)) for entry in stored} == {("/classify", json.dumps(BODY))}
    assert sum(entry.answer == json.loads(other) for entry in stored) == 1


@pytest.mark.parametrize(
    ("status", "page", "message"),
    [
        (401, SECRET, "responds with status 401. Set --api-key."),
        (404, SECRET, "responds with status 404. Metrics are at /metrics, on the admin port if there is one."),
        (500, SECRET, "responds with status 500."),
        (200, f'[{{"name": "{SECRET}"}}]', "URL has no metrics. They are at a server's /metrics."),
    ],
)
def test_metrics_that_cannot_be_read_name_the_next_step(status, page, message):
    with service(None) as metrics:
        metrics.RequestHandlerClass = type("Page", (metrics.RequestHandlerClass,), {"do_GET": _page(page, status)})
        result = CliRunner().invoke(main, ["shadow-report", metrics.url])
    assert (result.exit_code, SECRET in result.output) == (1, False)
    assert result.output.rstrip().endswith(message)


def test_an_address_without_a_server_is_told():
    with service(None) as metrics:
        pass
    for url, reason in ((metrics.url, "Check the address, and that a server runs."), ("ftp://a", "must begin with")):
        result = CliRunner().invoke(main, ["shadow-report", url])
        assert (result.exit_code, reason in result.output) == (1, True), result.output


def _page(page: str, status: int = 200):
    def respond(handler) -> None:
        handler.send_response(status)
        handler.send_header("content-length", str(len(page.encode())))
        handler.end_headers()
        handler.wfile.write(page.encode())

    return respond


@pytest.mark.parametrize(
    ("respond", "outcome"),
    [
        (lambda _: (503, {}), "503"),
        (lambda _: (302, {}), "302"),
        (lambda _: (200, b"<html>"), "not JSON"),
        (lambda _: (200, b"3"), "unknown form"),
        (lambda _: (200, b"[%b]" % (b" " * live_share.MAX_BYTES)), "no response"),
        (None, "no response"),
    ],
)
async def test_failures_of_the_endpoint_reach_nobody(artifact_dir, respond, outcome, caplog):
    expected = await answer_of(artifact_dir)
    with service(respond or (lambda _: 1 / 0)) as existing:
        async with Live(artifact_dir, existing.url if respond else "http://127.0.0.1:1") as live:
            (response,) = await live.ask()
            await live.settle()
    assert (response.status_code, response.content) == (200, expected)
    assert live.stats.existing.outcomes == {outcome: 1}
    assert live.stats.candidate.outcomes == {"200": 1}
    assert not live.stats.kinds
    assert SECRET not in caplog.text
    if outcome != "unknown form":
        assert "does not answer" in caplog.text


async def test_endpoint_that_hangs_delays_nothing_and_fills_a_bounded_queue(artifact_dir):
    ended = threading.Event()

    def wait(_):
        ended.wait()
        return 200, {}

    room = live_share.MAX_RUNNING + live_share.MAX_WAITING
    with service(wait) as existing:
        async with Live(artifact_dir, existing.url, shadow_timeout_ms=600_000) as live:
            responses = await live.ask(live_share.MAX_RUNNING)
            while len(existing.seen) < live_share.MAX_RUNNING:
                await asyncio.sleep(0)  # lets the copies go
            responses += await live.ask(live_share.MAX_WAITING + 5)
            assert {response.status_code for response in responses} == {200}
            assert live.stats.dropped == len(responses) - room == 5
            assert live.stats.existing.outcomes == {}
        assert not live.share._waiting  # the copies end with the server
        ended.set()


async def test_endpoint_that_is_too_slow_is_given_up(artifact_dir):
    ended = threading.Event()
    with service(lambda _: (ended.wait(), (200, {}))[1]) as existing:
        async with Live(artifact_dir, existing.url, shadow_timeout_ms=1) as live:
            await live.ask()
            await live.settle()
        ended.set()
    assert live.stats.existing.outcomes == {"no response": 1}


async def test_what_the_candidate_refuses_differs_and_no_json_is_not_sent(artifact_dir):
    answer = await answer_of(artifact_dir)
    with service(lambda _: (200, answer)) as existing:
        async with Live(artifact_dir, existing.url) as live:
            await live.ask(json={"inputs": "a", "parameters": {"top_k": -1}})
            await live.ask(content=b"{", headers={"content-type": "application/json"})
            await live.ask(json=[1])
            await live.ask(json={"inputs": "a" * 10_000})  # larger than the server reads
            await live.settle()
    assert [body for *_, body in existing.seen] == [{"inputs": "a", "parameters": {"top_k": -1}}]
    assert live.stats.candidate.outcomes == {"422": 1}
    assert live.stats.kinds["label"].agreement.value == 0


async def test_refusal_of_a_request_is_no_failure_of_the_service(artifact_dir, caplog):
    with service(lambda _: (422, {})) as existing:
        async with Live(artifact_dir, existing.url) as live:
            await live.ask()
            await live.settle()
    assert live.stats.existing.outcomes == {"422": 1}
    assert "does not answer" not in caplog.text


async def test_copies_go_to_the_path_of_their_route_alone(artifact_dir):
    model = "tiny-classify"
    with service(lambda _: (200, {})) as existing:
        paths = ("/v1/models/{model}:predict", "/v2/models/{model}/infer")
        async with Live(artifact_dir, existing.url, shadow_paths=paths) as live:
            for path in (f"/v1/models/{model}:predict", "/v2/models/%2e%2e/infer"):
                await live.client.post(path, json={"instances": ["a"]})
            await live.settle()
    assert [path for path, *_ in existing.seen] == [f"/v1/models/{model}:predict"]
    assert live.stats.dropped == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shadow_url": "http://a..b"}, "An endpoint is an address"),
        ({"shadow_url": "ftp://a"}, "An endpoint is an address"),
        ({"shadow_url": "http://name:key@a"}, "An endpoint is an address"),
        ({"shadow_url": None}, "need shadow_url"),
        ({"shadow_paths": ()}, "it is empty"),
        ({"shadow_paths": ("/classify", "/health/live")}, "/health/live is none"),
        ({"shadow_key_file": "missing"}, "cannot be read"),
        ({"shadow_log": "."}, "cannot be opened"),
    ],
)
def test_invalid_settings_end_the_start(artifact_dir, wrong, message):
    valid = {"shadow_url": "http://127.0.0.1:1", "shadow_paths": ("/classify",)}
    runtime = make_runtime(artifact_dir, **valid | wrong)
    with pytest.raises(SetupError, match=message):
        live_share.create_public_gate(runtime, None, ())
    if "shadow_paths" in wrong:
        with pytest.raises(SetupError, match=message):
            live_share.check_paths(runtime)


@pytest.mark.parametrize("share", [0, -1, 1.01, "nan"])
def test_share_has_a_range(share):
    with pytest.raises(ValueError, match="shadow_share"):
        Settings(shadow_share=share)


def test_log_is_a_plain_file_of_its_owner(tmp_path):
    (tmp_path / "open").touch(0o644)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("open", "link", "pipe"):
        with pytest.raises(SetupError, match="The log"):
            LogWriter(tmp_path / name)


EMPTY = SimpleNamespace(stats=SimpleNamespace(models={}))
COUNTS = st.integers(0, 10**9)
STATS = st.builds(
    lambda sides, kinds, dropped: {
        "sides": dict(zip(("existing", "candidate"), sides, strict=True)),
        "kinds": kinds,
        "dropped": dropped,
    },
    st.lists(
        st.fixed_dictionaries(
            {
                "counts": st.lists(COUNTS, min_size=len(BUCKETS_S) + 1, max_size=len(BUCKETS_S) + 1),
                "seconds": st.integers(0, 2**40),
                "outcomes": st.dictionaries(st.sampled_from(["200", "503", "no response"]), st.integers(1, 10**9)),
            }
            | dict.fromkeys(COUNTERS, COUNTS)
        ),
        min_size=2,
        max_size=2,
    ),
    st.dictionaries(
        st.sampled_from(["choice", "score", "vector"]),
        st.fixed_dictionaries(dict.fromkeys(EndpointStats().kinds["any"].sums(), COUNTS)),
    ),
    COUNTS,
)


@settings(max_examples=20, phases=[Phase.explicit, Phase.generate])
@given(STATS, STATS)
def test_statistics_of_servers_add_up_in_pages_and_in_reports_of_fronts(first, second):
    by_fronts = EndpointStats()
    pages = []
    for fields in (first, second):
        by_fronts.add(json.loads(json.dumps(fields)))
        one = EndpointStats()
        one.add(fields)
        registry = CollectorRegistry()
        registry.register(_Collector(one))
        pages.append(generate_latest(registry).decode())
    assert endpoint_metrics.read(pages).dump() == by_fronts.dump()
    assert endpoint_metrics.read([""]) is None
    with pytest.raises(ValueError, match="another version"):
        endpoint_metrics.read([pages[0].replace("shadow_endpoint_tokens", "shadow_endpoint_words")])


class _Collector:
    def __init__(self, stats: EndpointStats) -> None:
        self._stats = stats

    def collect(self):
        return endpoint_metrics.collect(self._stats, prometheus.SnapshotCollector(EMPTY)._add)
