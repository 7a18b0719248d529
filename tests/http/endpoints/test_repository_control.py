"""The endpoints on the admin port that load and unload models."""

from __future__ import annotations

import asyncio
import time

import httpx2
import pytest

from swiftlet_serve.http.endpoints.repository_control import RepositoryControl
from swiftlet_serve.http.gate.api_keys import ApiKeys, make_key
from swiftlet_serve.http.gate.request import Head, Request
from swiftlet_serve.http.gates import create_admin_gate
from tests.support.apps import admin_app, assert_problem
from tests.support.fakes import PATIENCE_S
from tests.support.repositories import make_version, served

KEY, LINE = make_key("operator")


@pytest.fixture
def root(tmp_path):
    make_version(tmp_path, "flowers", 1)
    make_version(tmp_path, "flowers", 2)
    return tmp_path


def admin(server) -> httpx2.AsyncClient:
    app = admin_app(server.runtime, RepositoryControl(server.manager, server.runtime), ApiKeys([LINE]))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://admin")


async def test_versions_are_loaded_and_unloaded(root):
    async with served(root) as server, admin(server) as client:
        client.headers["x-api-key"] = KEY
        load = "/v2/repository/models/flowers/load"
        assert (await client.post(load, json={"parameters": {"version": 1}})).json() == {}
        assert await server.version() == 1
        assert (await client.post(load, json={"parameters": {"version": 2, "alias": "canary"}})).status_code == 200
        assert await server.version("flowers@canary") == 2
        assert (await client.post(load)).status_code == 200
        assert await server.version() == 2
        index = (await client.post("/v2/repository/index")).json()
        assert index == [{"name": "flowers", "version": "2", "state": "READY", "reason": ""}]
        unload = "/v2/repository/models/flowers/unload"
        assert (await client.post(unload, json={"parameters": {"unload_dependents": False}})).status_code == 200
        assert (await client.post("/v2/repository/index", json={"ready": True})).json() == []
        assert_problem(await client.post(unload), 404, "unknown_model")


async def test_change_goes_on_when_the_client_disconnects(root, monkeypatch):
    async with served(root) as server:
        gate = create_admin_gate(server.runtime, RepositoryControl(server.manager, server.runtime), ApiKeys([LINE]))
        started, may_go_on, load = asyncio.Event(), asyncio.Event(), server.manager.load

        async def slow(*arguments: object) -> None:
            started.set()
            await may_go_on.wait()
            await load(*arguments)

        monkeypatch.setattr(server.manager, "load", slow)
        headers = [(b"x-api-key", KEY.encode())]
        request = gate.begin(Head("POST", "/v2/repository/models/flowers/load", headers, "", time.monotonic()))
        assert isinstance(request, Request)
        request.body = b'{"parameters": {"version": 1}}'
        answer = asyncio.ensure_future(gate.answer(request))
        await started.wait()
        request.is_disconnected = True
        answer.cancel()
        assert await answer is None
        assert await server.version() == 2
        may_go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            while await server.version() != 1:
                await asyncio.sleep(0.01)


async def test_failed_version_is_in_the_index_and_in_the_response(root):
    (root / "flowers" / "2" / "card.json").write_text("{}")
    async with served(root) as server, admin(server) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        response = await client.post("/v2/repository/models/flowers/load", json={"parameters": {"version": 2}})
        problem = assert_problem(response, 422, "model_not_loaded")
        assert "card.json" in problem["detail"]
        assert await server.version() == 1
        states = {one["version"]: one["state"] for one in (await client.post("/v2/repository/index")).json()}
        assert states == {"1": "READY", "2": "UNAVAILABLE"}
        assert len((await client.post("/v2/repository/index", json={"ready": True})).json()) == 1


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/flowers/load"])
async def test_control_needs_an_admin_key(path, root):
    async with served(root) as server, admin(server) as client:
        assert_problem(await client.post(path), 401, "missing_key")
        assert_problem(await client.post(path, headers={"x-api-key": "guess"}), 401, "bad_key")
        assert_problem(await client.get(path, headers={"x-api-key": KEY}), 405, "method_not_allowed")


async def test_without_admin_keys_there_is_no_control(root):
    async with served(root) as server:
        app = admin_app(server.runtime)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://admin") as client:
            assert_problem(await client.post("/v2/repository/index"), 404, "unknown_route")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 422),
        (b'{"parameters": {"version": 0}}', 422),
        (b'{"parameters": {"version": "x"}}', 422),
        (b'{"parameters": {"alias": "../x"}}', 422),
        (b" " * 70_000, 413),
    ],
)
async def test_bad_bodies_change_nothing(body, status, root):
    async with served(root) as server, admin(server) as client:
        client.headers["x-api-key"] = KEY
        response = await client.post("/v2/repository/models/flowers/load", content=body)
        assert response.status_code == status
        assert await server.version() == 2


async def test_unknown_models_and_versions(root):
    async with served(root) as server, admin(server) as client:
        client.headers["x-api-key"] = KEY
        for path in ("weeds/load", "..%2f..%2fetc/load", "weeds/unload"):
            assert (await client.post(f"/v2/repository/models/{path}")).status_code == 404
        response = await client.post("/v2/repository/models/flowers/load", json={"parameters": {"version": 9}})
        assert_problem(response, 404, "unknown_model")
