"""Requests that the application refuses or admits, by their head and by the state of the server."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.apps import SECRET, TASKS, assert_problem, make_gated_runtime, make_runtime


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "1e3", "600001", "9" * 30, "٣", SECRET])
def test_app_rejects_invalid_timeouts(value, client):
    response = client.post("/classify", json={"inputs": "a"}, headers={"x-request-timeout-ms": value.encode()})

    assert_problem(response, 422, "validation_failed")


def test_app_responds_503_with_retry_after_when_the_queue_is_full(artifact_dir):
    runtime = make_runtime(artifact_dir)
    with TestClient(create_app(runtime)) as client:
        runtime.admission.max_queued_tokens = 1
        response = client.post("/classify", json={"inputs": "abc"})

    assert_problem(response, 503, "overloaded")
    assert int(response.headers["retry-after"]) >= 1


def test_app_refuses_before_it_reads_the_body(artifact_dir, monkeypatch):
    """The body is not JSON and would cause a 400 if it were read."""
    runtime = make_runtime(artifact_dir)
    monkeypatch.setattr("swiftlet_serve.scheduling.admission.wait_s", lambda *_: 5.0)
    with TestClient(create_app(runtime)) as client:
        refused, bulk = (
            client.post("/classify", content="no", headers={"x-request-timeout-ms": timeout} | priority)
            for timeout, priority in (("6000", {}), ("12000", {"x-request-priority": "bulk"}))
        )
        read = client.post("/classify", content="no", headers={"x-request-timeout-ms": "12000"})

    for response in (refused, bulk):
        assert_problem(response, 503, "overloaded")
        assert 5 <= int(response.headers["retry-after"]) <= 8
    assert_problem(read, 400, "invalid_json")


def test_app_admits_all_sequences_of_a_request_or_none(artifact_dir):
    runtime, engine = make_gated_runtime(artifact_dir)
    with TestClient(create_app(runtime)) as client:
        runtime.admission.max_queued_tokens = 8
        response = client.post("/classify", json={"inputs": ["a", "b", "c", "d"]})

        assert_problem(response, 503, "overloaded")
        assert runtime.dispatcher.queued_tokens == 0
    assert engine.calls.empty()


@pytest.mark.parametrize("value", ["", "high", "Bulk", "interactive, bulk", "\xff"])
def test_app_rejects_unknown_priorities(value, client):
    response = client.post("/classify", json={"inputs": "a"}, headers={"x-request-priority": value.encode("latin-1")})

    assert assert_problem(response, 422, "validation_failed")["errors"] == [{"pointer": "", "code": "priority_header"}]


def test_app_answers_both_priorities(client):
    for priority in ("interactive", "bulk"):
        response = client.post("/classify", json={"inputs": "a"}, headers={"x-request-priority": priority})
        assert response.status_code == 200


def test_app_responds_429_with_retry_after_above_the_rate_limit(artifact_dir):
    models = tuple(str(artifact_dir / f"tiny-{task}") for task in TASKS)
    runtime = LocalRuntime.load(Settings(models=models, engine="echo", cores=2, client_rate_limit=0.5))
    with TestClient(create_app(runtime)) as client:
        first, second = (client.post("/classify", json={"inputs": "a"}) for _ in range(2))

        assert first.status_code == 200
        assert_problem(second, 429, "quota_exceeded")
        assert 1 <= int(second.headers["retry-after"]) <= 2
        assert client.get("/health/ready").status_code == 200


def test_app_counts_the_tokens_of_admitted_requests(artifact_dir):
    """The quota is one token in a hundred seconds, so only a client that has sent no tokens is admitted."""
    runtime = make_runtime(artifact_dir, client_token_rate_limit=0.01, trusted_proxies="10.0.0.1")
    with TestClient(create_app(runtime), client=("10.0.0.1", 5)) as client:

        def post(address, inputs):
            return client.post("/classify", json={"inputs": inputs}, headers={"X-Forwarded-For": address})

        invalid, full = post("192.0.2.1", 3), runtime.admission.max_queued_tokens
        runtime.admission.max_queued_tokens = 1
        overloaded = post("192.0.2.1", "a")
        runtime.admission.max_queued_tokens = full
        large, small = post("192.0.2.1", ["a " * 9] * 9), post("192.0.2.1", "a")
        other = post("192.0.2.2", "a")

    assert (invalid.status_code, overloaded.status_code) == (422, 503)  # they have run nothing, and cost no tokens
    assert (large.status_code, other.status_code) == (200, 200)
    assert "rate limit of tokens" in assert_problem(small, 429, "quota_exceeded")["detail"]
    owed = 100 * (int(large.headers["x-compute-tokens"]) - 1)
    assert owed - 60 <= int(small.headers["retry-after"]) <= owed


@pytest.mark.parametrize(
    ("first", "second", "limited"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%" + "x" * 7000, True),
    ],
)
def test_app_limits_all_addresses_of_a_client_together(first, second, limited, artifact_dir):
    runtime = make_runtime(artifact_dir, client_rate_limit=0.5, trusted_proxies="10.0.0.1")
    with TestClient(create_app(runtime), client=("10.0.0.1", 5)) as client:
        statuses = [
            client.post("/classify", json={"inputs": "a"}, headers={"X-Forwarded-For": address}).status_code
            for address in (first, second)
        ]

    assert statuses == [200, 429 if limited else 200]
