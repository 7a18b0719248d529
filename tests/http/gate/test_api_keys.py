"""API keys: the key file, and access to the routes."""

from __future__ import annotations

import hmac
import logging
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http import playground
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.gate.api_keys import ApiKeys, make_key
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.app_client import AppClient
from tests.support.apps import TASKS, admin_app, assert_problem, make_runtime
from tests.support.dialects import dialect_routes

OTHER = "0" * 43

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "xyzzyplugh"]

PAGE = {"GET", "HEAD"}
HEALTH = {"/health/live": PAGE, "/health/ready": PAGE}

OPEN = HEALTH | dict.fromkeys(playground.FILES, PAGE)

LOCKED = {"/classify": {"POST"}, "/qa": {"POST"}, "/fill-mask": {"POST"}, "/batch": {"POST"}, "/models": PAGE}

LOCKED |= {"/openapi.json": PAGE, "/metrics": PAGE, "/status": PAGE}

NOWHERE = [
    "/page",
    "/page/",
    "/page/__init__.py",
    "/page/%2e%2e/keys.py",
    "/page/index.html",
    "/index.html",
    "/docs",
    "/redoc",
    "/admin",
    "/classify/",
    "/health/",
    "/health/live/",
    "/%2e",
    "*",
]

NOWHERE += ["http://testserver//classify", "/classify%00", "/health/live%2F..%2F..%2Fclassify", "/Classify"]

KEY, LINE = make_key("alice")


@pytest.fixture(scope="module")
def locked(artifact_dir):
    with AppClient(create_app(make_runtime(artifact_dir), ApiKeys([LINE])), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def unlocked(artifact_dir):
    with AppClient(create_app(make_runtime(artifact_dir)), raise_server_exceptions=False) as client:
        yield client


def test_api_keys_store_the_hash_only():
    keys = ApiKeys(["# who may ask", "", LINE, make_key("bob")[1] + "  # since May"])

    assert keys.owner(KEY) == "alice"
    assert keys.owner(OTHER) is None
    assert KEY not in LINE
    assert len(KEY) == 43  # 256 bits


def test_api_keys_allow_two_keys_of_one_owner():
    new, line = make_key("alice")
    keys = ApiKeys([LINE, line])

    assert [keys.owner(KEY), keys.owner(new)] == ["alice", "alice"]


@given(key=st.text())
def test_api_keys_reject_other_keys(key):
    assert ApiKeys([LINE]).owner(key) == ("alice" if key == KEY else None)


def test_api_keys_compare_every_hash(monkeypatch):
    """The time of a lookup does not tell whether, or where, a key is in the file."""
    compared = []

    def compare(known, given):
        compared.append(known)
        return compare_digest(known, given)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = ApiKeys([make_key(name)[1] if name else LINE for name in ("a", "", "b", "c")])
    for key in (KEY, OTHER, "", "é"):
        compared.clear()
        keys.owner(key)
        assert len(compared) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("# alice\n\n", "has no keys"),
        (f"{LINE}\nalice\n", "Line 2"),
        (f"alice {KEY}\n", "Line 1"),
        (LINE.upper(), "Line 1"),
        (f"{LINE} {LINE}", "Line 1"),
        (f"ali/ce {'0' * 64}", "Line 1"),
        (f"ält {'0' * 64}", "not plain ASCII text"),
    ],
    ids=["nothing", "a comment", "a name alone", "a key", "capitals", "two in a line", "a slash", "an umlaut"],
)
def test_api_keys_reject_an_invalid_file(text, message, tmp_path):
    path = tmp_path / "keys"
    path.write_text(text, "utf-8")

    with pytest.raises(SetupError, match=message) as failure:
        ApiKeys.read(path)
    assert KEY not in str(failure.value)


def test_serve_fails_without_the_key_file_before_it_loads_models(tmp_path):
    result = CliRunner().invoke(main, ["serve", "--api-keys-file", str(tmp_path / "keys"), "--models", "nowhere"])

    assert result.exit_code == 1
    assert re.search(r"Cannot read the API key file \S+: No such file or directory\.", result.output)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_api_keys_warn_of_a_world_readable_file(mode, warned, tmp_path, caplog):
    path: Path = tmp_path / "keys"
    path.write_text(LINE + "\n")
    path.chmod(mode)
    caplog.set_level(logging.WARNING)
    ApiKeys.read(path)

    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert ("can read the API key file" in caplog.text) == warned


def test_key_command_prints_the_key_and_its_line():
    result = CliRunner().invoke(main, ["key", "carol"])
    key = result.stderr.split()[-1]

    assert ApiKeys(result.stdout.splitlines()).owner(key) == "carol"
    assert CliRunner().invoke(main, ["key", "carol"]).stderr != result.stderr
    assert CliRunner().invoke(main, ["key", "no one"]).exit_code == 1


def test_public_app_has_exactly_these_routes_and_methods(unlocked):
    for path, allowed in {**OPEN, **LOCKED}.items():
        for method in METHODS:
            response = unlocked.request(method, path)
            if method in allowed:
                assert response.status_code in (200, 400), (method, path)  # 400: a POST without a body
            elif (method, path) == ("POST", "/"):
                assert_problem(response, 404, "unknown_route")  # as clients of a hub send it: the error has the paths
            elif method == "HEAD":
                assert response.status_code == 405
            else:
                assert_problem(response, 405, "method_not_allowed")
                assert set(response.headers["allow"].split(", ")) == allowed
    for path in NOWHERE:
        for method in METHODS:
            assert unlocked.request(method, path).status_code == 404, (method, path)
    routes = {(method, route.path) for route in unlocked.app.routes for method in route.methods - {"HEAD"}}
    own = {(method, path) for path, methods in {**OPEN, **LOCKED}.items() for method in methods - {"HEAD"}}
    assert routes == own | dialect_routes().keys()


def test_only_health_and_playground_routes_need_no_key(locked):
    for path in [*LOCKED, *NOWHERE, *OPEN]:
        for method in METHODS:
            response = locked.request(method, path)
            if path in OPEN:
                missing = 404 if (method, path) == ("POST", "/") else 405
                assert response.status_code == (200 if method in OPEN[path] else missing)
            else:
                assert response.status_code == 401, (method, path)
                assert response.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    assert_problem(response, 401, "missing_key")


@pytest.mark.parametrize(("method", "path", "public"), [(*route, public) for route, public in dialect_routes().items()])
def test_routes_of_dialects_need_a_key_unless_public(method, path, public, locked):
    response = locked.request(method, path.format(model="classify", version="1"))

    assert response.status_code == (200 if public else 401)
    assert public or not {"error", "message", "detail"}.isdisjoint(response.json())


def test_admin_app_has_health_and_metrics_only(artifact_dir):
    runtime = make_runtime(artifact_dir)
    own = {*HEALTH, "/metrics"}
    with AppClient(create_app(runtime)), TestClient(admin_app(runtime)) as client:
        for path in [*OPEN, *LOCKED, *NOWHERE]:
            assert client.get(path).status_code == (200 if path in own else 404)
            assert client.post(path).status_code == (405 if path in own else 404)


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
def test_valid_key_grants_access_to_every_task(header, locked):
    headers = {header: f"Bearer {KEY}" if header == "Authorization" else KEY}
    for task, body in zip(TASKS, ("fine", {"question": "who?", "context": "me."}, "a [MASK]"), strict=True):
        assert locked.post(f"/{task}", json={"inputs": body}, headers=headers).status_code == 200
    assert locked.get("/openapi.json", headers=headers).status_code == 200
    assert_problem(locked.get("/nowhere", headers=headers), 404, "unknown_route")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {OTHER}"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": "Bearer "},
        {"Authorization": "bearer xyzzyplugh"},
        {"Authorization": f"Bearer {OTHER}", "X-API-Key": KEY},
        {"X-API-Key": LINE.split()[1]},
        {"X-API-Key": ""},
        {"X-API-Key": "é".encode()},
    ],
)
def test_invalid_keys_get_the_same_error(headers, locked):
    response = locked.post("/classify", json={"inputs": "a"}, headers={**headers, "X-Request-Id": "r"})
    other = locked.post("/qa", headers={"X-API-Key": "alice", "X-Request-Id": "r"})

    assert_problem(response, 401, "bad_key")
    assert response.content == other.content
    assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert OTHER not in response.text


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Basic {KEY}"}, {"Authorization": KEY}, {"Cookie": f"key={KEY}"}]
)
def test_key_in_another_place_does_not_count(headers, locked):
    assert_problem(locked.post(f"/classify?key={KEY}", json={"inputs": "a"}, headers=headers), 401, "missing_key")


def test_log_contains_no_key(locked, caplog):
    caplog.set_level(logging.DEBUG)
    locked.post("/classify", json={"inputs": "a"}, headers={"X-API-Key": KEY})
    locked.post("/classify", json={"inputs": "a"}, headers={"X-API-Key": OTHER})

    assert KEY not in caplog.text
    assert OTHER not in caplog.text


def test_record_names_the_owner_of_the_key_or_the_address(artifact_dir):
    for keys, name in ((ApiKeys([LINE]), "alice"), (None, "testclient")):
        records: list[RequestRecord] = []
        app = create_app(make_runtime(artifact_dir), keys, [records.append])
        with AppClient(app) as client:
            client.get("/models", headers={"X-API-Key": KEY})

            client.get("/models", headers={"X-API-Key": OTHER})

        assert [record.client for record in records] == [name, "testclient"]
