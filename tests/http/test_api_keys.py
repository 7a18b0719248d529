"""API keys: who has one is let in, everybody else is not, wherever they knock."""

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

from swiftlet_serve.service.cli import main
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.http import playground
from swiftlet_serve.service.http.api_keys import Keys, make_key
from swiftlet_serve.service.http.app import create_admin, create_app
from tests.http.test_app import TASKS, is_problem, make_runtime

OTHER = "0" * 43
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "xyzzyplugh"]
HEALTH = {"/health/live": {"GET"}, "/health/ready": {"GET"}}
OPEN = HEALTH | {path: {"GET", "HEAD"} for path in playground.FILES}
LOCKED = {"/classify": {"POST"}, "/qa": {"POST"}, "/fill-mask": {"POST"}, "/models": {"GET"}}
LOCKED |= {"/openapi.json": {"GET", "HEAD"}, "/metrics": {"GET"}, "/status": {"GET"}}
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
    "/health",
    "/health/",
    "/health/live/",
    "/%2e",
    "*",
]
NOWHERE += ["http://testserver//classify", "/classify%00", "/health/live%2F..%2F..%2Fclassify", "/Classify"]

KEY, LINE = make_key("alice")


@pytest.fixture(scope="module")
def locked(artifact_dir):
    with TestClient(create_app(make_runtime(artifact_dir), Keys([LINE])), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def unlocked(artifact_dir):
    with TestClient(create_app(make_runtime(artifact_dir)), raise_server_exceptions=False) as client:
        yield client


# The file


def test_a_key_is_known_by_its_hash_and_leaves_no_trace_in_the_line():
    keys = Keys(["# who may ask", "", LINE, make_key("bob")[1] + "  # since May"])

    assert keys.owner(KEY) == "alice"
    assert keys.owner(OTHER) is None
    assert KEY not in LINE
    assert len(KEY) == 43  # 256 bits


def test_an_owner_may_have_two_keys_so_that_one_can_replace_the_other():
    new, line = make_key("alice")
    keys = Keys([LINE, line])

    assert [keys.owner(KEY), keys.owner(new)] == ["alice", "alice"]


@given(key=st.text())
def test_no_other_key_is_known(key):
    assert Keys([LINE]).owner(key) == ("alice" if key == KEY else None)


def test_every_hash_is_compared_whoever_asks(monkeypatch):
    """So that time tells nothing of whether, and where, a key is in the file."""
    compared = []

    def compare(known, given):
        compared.append(known)
        return compare_digest(known, given)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys([make_key(name)[1] if name else LINE for name in ("a", "", "b", "c")])
    for key in (KEY, OTHER, "", "é"):
        compared.clear()
        keys.owner(key)
        assert len(compared) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds none"),
        ("# alice\n\n", "holds none"),
        (f"{LINE}\nalice\n", "Line 2"),
        (f"alice {KEY}\n", "Line 1"),
        (LINE.upper(), "Line 1"),
        (f"{LINE} {LINE}", "Line 1"),
        (f"ali/ce {'0' * 64}", "Line 1"),
        (f"ält {'0' * 64}", "not plain text"),
    ],
    ids=["nothing", "a comment", "a name alone", "a key", "capitals", "two in a line", "a slash", "an umlaut"],
)
def test_a_file_of_keys_that_is_wrong_ends_the_start(text, said, tmp_path):
    path = tmp_path / "keys"
    path.write_text(text, "utf-8")

    with pytest.raises(SetupError, match=said) as failure:
        Keys.read(path)
    assert KEY not in str(failure.value)


def test_a_file_of_keys_that_is_not_there_ends_the_start_before_models_are_loaded(tmp_path):
    result = CliRunner().invoke(main, ["serve", "--api-keys-file", str(tmp_path / "keys"), "--models", "nowhere"])

    assert result.exit_code == 1
    assert re.search(r"The file of API keys \S+ cannot be read: No such file or directory\.", result.output)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_of_keys_that_everybody_may_read_is_warned_of(mode, warned, tmp_path, caplog):
    path: Path = tmp_path / "keys"
    path.write_text(LINE + "\n")
    path.chmod(mode)
    caplog.set_level(logging.WARNING)
    Keys.read(path)

    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert ("Every user of this machine may read" in caplog.text) == warned


def test_the_command_shows_a_key_once_and_gives_its_line():
    result = CliRunner().invoke(main, ["key", "carol"])
    key = result.stderr.split()[-1]

    assert Keys(result.stdout.splitlines()).owner(key) == "carol"
    assert CliRunner().invoke(main, ["key", "carol"]).stderr != result.stderr
    assert CliRunner().invoke(main, ["key", "no one"]).exit_code == 1


# The door


def test_the_public_port_has_these_routes_and_methods_and_no_others(unlocked):
    for path, allowed in {**OPEN, **LOCKED}.items():
        for method in METHODS:
            response = unlocked.request(method, path)
            if method in allowed:
                assert response.status_code in (200, 400), (method, path)  # 400: a POST without a body
            elif method == "HEAD":
                assert response.status_code == 405
            else:
                is_problem(response, 405, "method_not_allowed")
                assert set(response.headers["allow"].split(", ")) == allowed
    for path in NOWHERE:
        for method in METHODS:
            assert unlocked.request(method, path).status_code == 404, (method, path)
    paths = {route.path: route.methods for route in unlocked.app.routes}
    assert paths == {**OPEN, **LOCKED}


def test_without_a_key_every_address_but_those_of_health_and_the_page_is_closed(locked):
    for path in [*LOCKED, *NOWHERE, *OPEN]:
        for method in METHODS:
            response = locked.request(method, path)
            if path in OPEN:
                assert response.status_code == (200 if method in OPEN[path] else 405)
            else:
                assert response.status_code == 401, (method, path)
                assert response.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    is_problem(response, 401, "missing_key")


def test_the_own_port_has_health_and_metrics_and_nothing_else(artifact_dir):
    runtime = make_runtime(artifact_dir)
    own = {*HEALTH, "/metrics"}
    with TestClient(create_app(runtime)), TestClient(create_admin(runtime)) as client:
        for path in [*OPEN, *LOCKED, *NOWHERE]:
            assert client.get(path).status_code == (200 if path in own else 404)
            assert client.post(path).status_code == (405 if path in own else 404)


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
def test_with_a_key_every_task_answers(header, locked):
    headers = {header: f"Bearer {KEY}" if header == "Authorization" else KEY}
    for task, body in zip(TASKS, ("fine", {"question": "who?", "context": "me."}, "a [MASK]"), strict=True):
        assert locked.post(f"/{task}", json={"inputs": body}, headers=headers).status_code == 200
    assert locked.get("/openapi.json", headers=headers).status_code == 200
    is_problem(locked.get("/nowhere", headers=headers), 404, "unknown_route")


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
def test_a_wrong_key_is_refused_in_the_same_words_whatever_is_wrong_with_it(headers, locked):
    response = locked.post("/classify", json={"inputs": "a"}, headers={**headers, "X-Request-Id": "r"})
    other = locked.post("/qa", headers={"X-API-Key": "alice", "X-Request-Id": "r"})

    is_problem(response, 401, "bad_key")
    assert response.content == other.content
    assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert OTHER not in response.text


@pytest.mark.parametrize(
    "headers", [{"Authorization": f"Basic {KEY}"}, {"Authorization": KEY}, {"Cookie": f"key={KEY}"}]
)
def test_a_key_counts_only_where_it_belongs(headers, locked):
    is_problem(locked.post(f"/classify?key={KEY}", json={"inputs": "a"}, headers=headers), 401, "missing_key")


def test_no_log_holds_a_key(locked, caplog):
    caplog.set_level(logging.DEBUG)
    locked.post("/classify", json={"inputs": "a"}, headers={"X-API-Key": KEY})
    locked.post("/classify", json={"inputs": "a"}, headers={"X-API-Key": OTHER})

    assert KEY not in caplog.text
    assert OTHER not in caplog.text


def asked_by(app) -> list[str]:
    """The names that requests are counted under, as the routes see them."""
    seen: list[str] = []
    route = next(route for route in app.routes if route.path == "/models")
    answer = route.app

    async def remember(scope, receive, send):
        seen.append(scope["state"]["record"].client)
        await answer(scope, receive, send)

    route.app = remember
    return seen


def test_requests_are_counted_under_the_owner_of_the_key_or_the_address(artifact_dir):
    for keys, name in ((Keys([LINE]), "alice"), (None, "testclient")):
        app = create_app(make_runtime(artifact_dir), keys)
        seen = asked_by(app)
        with TestClient(app) as client:
            client.get("/models", headers={"X-API-Key": KEY})

        assert seen == [name]
