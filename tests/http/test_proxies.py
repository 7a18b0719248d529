"""Who asks: proxies that are trusted are believed, nobody else is; and what pages of other origins may do."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from swiftlet_serve.service.http.api_keys import Keys
from swiftlet_serve.service.http.app import create_app
from swiftlet_serve.service.http.proxies import client
from swiftlet_serve.service.settings import Settings
from tests.http.test_api_keys import KEY, LINE, asked_by
from tests.http.test_app import is_problem, make_runtime

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "found"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["203.0.113.7"], "192.0.2.1"),  # made up
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.7"], "203.0.113.7"),  # what is left of it was made up
        ("10.0.0.1", ["6.6.6.6", "203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7, 10.1.1.1"], "203.0.113.7"),
        ("10.0.0.1", ["10.2.2.2, 10.1.1.1"], "10.2.2.2"),
        ("10.0.0.1", ["203.0.113.7, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, nonsense, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("fd00::1", ["2001:DB8::0001"], "2001:db8::1"),
        ("unknown", ["203.0.113.7"], "unknown"),
    ],
)
def test_the_client_is_whom_the_last_trusted_proxy_heard(peer, forwarded_for, found):
    assert client(peer, forwarded_for, PROXIES) == found


@given(peer=st.ip_addresses().map(str), made_up=st.lists(st.text()))
def test_nothing_that_a_stranger_sends_changes_who_he_is(peer, made_up):
    assert client(peer, made_up, []) == peer
    heard = [*made_up, "198.51.100.1"]  # he came through a proxy, which appends whom it heard

    assert client("10.0.0.1", heard, PROXIES) == "198.51.100.1"


@pytest.mark.parametrize("trusted", ["10.0.0.0/33", "proxy.internal", "*"])
def test_what_is_no_network_is_refused(trusted):
    with pytest.raises(ValidationError):
        Settings(trusted_proxies=trusted)


@pytest.mark.parametrize(
    ("peer", "found"), [("10.0.0.1", "203.0.113.7"), ("10.0.0.2", "10.0.0.2"), ("192.0.2.1", "192.0.2.1")]
)
def test_requests_are_counted_under_the_address_behind_a_trusted_proxy(peer, found, artifact_dir):
    runtime = make_runtime(artifact_dir)
    runtime.settings = runtime.settings.model_copy(update=vars(Settings(trusted_proxies="10.0.0.1, fd00::/8")))
    app = create_app(runtime)
    seen = asked_by(app)
    headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "Forwarded": "for=6.6.6.6"}
    with TestClient(app, client=(peer, 5)) as asking:
        assert asking.get("/models", headers={**headers, "X-Real-IP": "6.6.6.6"}).status_code == 200

    assert seen == [found]


# Pages of other origins

ASKS = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}


def browser(artifact_dir, origins: str) -> TestClient:
    runtime = make_runtime(artifact_dir)
    runtime.settings = runtime.settings.model_copy(update={"cors_origins": Settings(cors_origins=origins).cors_origins})
    return TestClient(create_app(runtime, Keys([LINE])), raise_server_exceptions=False)


def test_pages_of_other_origins_may_ask_nothing_unless_told(artifact_dir):
    with browser(artifact_dir, "") as asking:
        assert asking.options("/classify", headers=ASKS).status_code == 401
        response = asking.get("/models", headers={"Origin": "https://page.example", "X-API-Key": KEY})

    assert not any(name.startswith("access-control") for name in response.headers)


def test_pages_of_the_origins_named_may_ask_and_read_errors_too(artifact_dir):
    with browser(artifact_dir, "https://page.example, https://other.example") as asking:
        allowed = asking.options("/classify", headers={**ASKS, "Access-Control-Request-Headers": "x-api-key"})
        refused = asking.options("/classify", headers={**ASKS, "Origin": "https://evil.example"})
        answered = asking.get("/models", headers={"Origin": "https://page.example", "X-API-Key": KEY})
        error = asking.get("/models", headers={"Origin": "https://page.example"})
        other = asking.get("/models", headers={"Origin": "https://evil.example", "X-API-Key": KEY})

    scope = {"type": "http", "method": "GET", "path": "/models", "headers": [(b"origin", b"https://page.example")]}
    assert asking.app.state.refuse(scope) is None  # it would lack what lets the page read it
    assert asking.app.state.refuse(scope | {"headers": []}).status_code == 401
    assert (allowed.status_code, refused.status_code) == (200, 400)
    for response in (allowed, answered, error):
        assert response.headers["access-control-allow-origin"] == "https://page.example"
    is_problem(error, 401, "missing_key")
    assert "access-control-allow-origin" not in {**refused.headers, **other.headers}
    assert "access-control-allow-credentials" not in answered.headers
