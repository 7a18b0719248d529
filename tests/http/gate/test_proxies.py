"""Client addresses behind proxies, and cross-origin requests (CORS)."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_network

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.gate.api_keys import ApiKeys, make_key
from swiftlet_serve.http.gate.proxies import client_address, client_of
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.app_client import AppClient
from tests.support.apps import assert_problem, make_runtime

KEY, LINE = make_key("alice")
PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "found"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["203.0.113.7"], "192.0.2.1"),  # forged
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.7"], "203.0.113.7"),  # the entry to its left is forged
        ("10.0.0.1", ["6.6.6.6", "203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7, 10.1.1.1"], "203.0.113.7"),
        ("10.0.0.1", ["10.2.2.2, 10.1.1.1"], "10.2.2.2"),
        ("10.0.0.1", ["203.0.113.7, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, nonsense, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("fd00::1", ["2001:DB8::0001"], "2001:db8::1"),
        ("unknown", ["203.0.113.7"], "unknown"),
        ("::ffff:10.0.0.1", ["::ffff:203.0.113.7"], "203.0.113.7"),  # as a socket for IPv4 and IPv6 has it
        ("fd00::1%eth0", ["fe80::1%" + "x" * 7000], "fe80::1"),
        ("10.0.0.1", ["203.0.113.7%eth0"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7:80"], "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, "], "10.0.0.1"),
    ],
)
def test_client_address_is_the_last_untrusted_one(peer, forwarded_for, found):
    assert client_address(peer, forwarded_for, PROXIES) == found


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
        ("", ""),
    ],
)
def test_client_of_an_address_is_what_one_client_has(address, found):
    assert client_of(address) == found


@given(network=st.integers(0, (1 << 64) - 1), hosts=st.lists(st.integers(0, (1 << 64) - 1), min_size=1), zone=st.text())
def test_client_of_all_addresses_of_a_network_is_the_same(network, hosts, zone):
    written = [str(IPv6Address(network << 64 | host)) for host in hosts]
    zoned = [f"{address}%{zone}" for address in written]
    assume(not any(IPv6Address(address).ipv4_mapped for address in written))

    assert len({client_of(address) for address in written}) == 1
    assert {client_of(address) for address in zoned} <= {client_of(written[0]), *zoned}  # some texts are no zone


@given(st.ip_addresses(v=4).map(str))
def test_client_of_an_ipv4_address_in_ipv6_is_that_address(address):
    mapped = IPv6Address(f"::ffff:{address}")

    assert {client_of(text) for text in (address, f"::ffff:{address}", mapped.exploded)} == {address}


@given(peer=st.ip_addresses().map(str), forged=st.lists(st.text()))
def test_client_address_cannot_be_forged(peer, forged):
    assert client_of(client_address(peer, forged, [])) == client_of(peer)
    entries = [*forged, "198.51.100.1"]  # a proxy appends its peer

    assert client_address("10.0.0.1", entries, PROXIES) == "198.51.100.1"


@pytest.mark.parametrize("trusted", ["10.0.0.0/33", "proxy.internal", "*"])
def test_settings_reject_invalid_networks(trusted):
    with pytest.raises(ValidationError):
        Settings(trusted_proxies=trusted)


@pytest.mark.parametrize(
    ("peer", "found"), [("10.0.0.1", "203.0.113.7"), ("10.0.0.2", "10.0.0.2"), ("192.0.2.1", "192.0.2.1")]
)
def test_record_has_the_client_address_behind_a_trusted_proxy(peer, found, artifact_dir):
    runtime = make_runtime(artifact_dir)
    runtime.settings = runtime.settings.model_copy(update=vars(Settings(trusted_proxies="10.0.0.1, fd00::/8")))
    records: list[RequestRecord] = []
    app = create_app(runtime, observers=[records.append])
    headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "Forwarded": "for=6.6.6.6"}
    with AppClient(app, client=(peer, 5)) as client:
        assert client.get("/models", headers={**headers, "X-Real-IP": "6.6.6.6"}).status_code == 200

    assert [record.client for record in records] == [found]


PREFLIGHT = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}


def make_client(artifact_dir, origins: str) -> TestClient:
    runtime = make_runtime(artifact_dir)
    runtime.settings = runtime.settings.model_copy(update={"cors_origins": Settings(cors_origins=origins).cors_origins})
    return AppClient(create_app(runtime, ApiKeys([LINE])), raise_server_exceptions=False)


def test_cors_is_disabled_by_default(artifact_dir):
    with make_client(artifact_dir, "") as client:
        assert client.options("/classify", headers=PREFLIGHT).status_code == 401
        response = client.get("/models", headers={"Origin": "https://page.example", "X-API-Key": KEY})

    assert not any(name.startswith("access-control") for name in response.headers)


def test_cors_allows_the_configured_origins_and_their_errors(artifact_dir):
    with make_client(artifact_dir, "https://page.example, https://other.example") as client:
        allowed = client.options("/classify", headers={**PREFLIGHT, "Access-Control-Request-Headers": "x-api-key"})
        refused = client.options("/classify", headers={**PREFLIGHT, "Origin": "https://evil.example"})
        answered = client.get("/models", headers={"Origin": "https://page.example", "X-API-Key": KEY})
        error = client.get("/models", headers={"Origin": "https://page.example"})
        other = client.get("/models", headers={"Origin": "https://evil.example", "X-API-Key": KEY})

    assert (allowed.status_code, refused.status_code) == (200, 400)
    for response in (allowed, answered, error):
        assert response.headers["access-control-allow-origin"] == "https://page.example"
    assert_problem(error, 401, "missing_key")
    assert "access-control-allow-origin" not in {**refused.headers, **other.headers}
    assert "access-control-allow-credentials" not in answered.headers
