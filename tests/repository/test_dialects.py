"""The protocols of other servers reach every version of a model."""

from __future__ import annotations

import httpx2
import pytest

from swiftlet_serve.http.app import create_app
from tests.support.repositories import make_version, served, want


@pytest.fixture
def root(tmp_path):
    for number in (1, 2, 3):
        make_version(tmp_path, "flowers", number)
    want(tmp_path, flowers={"version": 1, "aliases": {"canary": 2}})
    return tmp_path


def client(server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(create_app(server.runtime)), base_url="http://test")


async def test_open_inference_protocol_has_versions(root):
    async with served(root) as server, client(server) as http:
        assert (await http.get("/v2/models/flowers")).json()["versions"] == ["1", "2"]
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["abc"]}]}
        for path, version in {"": "1", "/versions/2": "2", "/versions/canary": "2", "/versions/1": "1"}.items():
            response = (await http.post(f"/v2/models/flowers{path}/infer", json=body)).json()
            assert response["model_version"] == version
            labels = next(one for one in response["outputs"] if one["name"] == "label")["data"]
            assert all(label.startswith(f"v{version}-") for label in labels)
        assert (await http.post("/v2/models/flowers/versions/3/infer", json=body)).status_code == 404
        assert (await http.get("/v2/models/flowers/versions/2/ready")).status_code == 200
        assert (await http.get("/v2/models/flowers/versions/3/ready")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models/flowers@canary", {"inputs": "abc"}),
        ("/v1/models/flowers@canary:predict", {"instances": ["abc"]}),
        ("/classify", {"inputs": "abc", "model": "flowers@canary"}),
    ],
)
async def test_names_with_aliases_work_in_every_protocol(path, body, root):
    async with served(root) as server, client(server) as http:
        response = await http.post(path, json=body)
        assert (response.status_code, response.headers["x-model-version"]) == (200, "2")
        assert "v2-" in response.text
        assert "v1-" not in response.text


async def test_server_without_a_model_says_that_there_is_none(root):
    async with served(root) as server, client(server) as http:
        await server.manager.unload("flowers")
        response = await http.get("/info")
        assert (response.status_code, response.json()["code"]) == (404, "unknown_model")


async def test_models_page_shows_the_versions(root):
    async with served(root) as server:
        model = (await server.models())["flowers"]
        assert (model["version"], model["default"]) == ("1", True)
        shown = [(one["version"], one["state"], one["aliases"]) for one in model["versions"]]
        assert shown == [(1, "ready", ["default"]), (2, "ready", ["canary"])]


async def test_further_name_follows_the_models_of_the_repository(root):
    async with served(root, model_names={"other": "flowers", "none": "grass"}) as server, client(server) as http:
        for model, version in {"other": "1", "other@canary": "2"}.items():
            response = await http.post("/classify", json={"inputs": "abc", "model": model})
            assert (response.status_code, response.headers["x-model-version"]) == (200, version)
        response = await http.post("/classify", json={"inputs": "abc", "model": "none"})
        assert (response.status_code, response.json()["code"]) == (404, "unknown_model")
        assert [one["id"] for one in (await http.get("/v1/models")).json()["data"]] == ["flowers", "other"]
