"""The contract of containers on Vertex AI: a port, a route of health checks and one of predictions, from variables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from swiftlet_serve.cli import health_check
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.gate.api_keys import ApiKeys, make_key
from swiftlet_serve.settings import Settings
from tests.support.app_client import AppClient
from tests.support.apps import SECRET, make_runtime

USUAL = "/v1/endpoints/123/deployedModels/456"
BODY = {"instances": ["A warm film.", "서울의 봄 🎬"], "parameters": {"top_k": 1}}


@pytest.fixture
def serve(artifact_dir, monkeypatch) -> Callable[..., TestClient]:
    """Returns a client of a container with these routes."""

    def start(predict: str, health: str = f"{USUAL}/health", keys: ApiKeys | None = None) -> TestClient:
        monkeypatch.setenv("AIP_PREDICT_ROUTE", predict)
        monkeypatch.setenv("AIP_HEALTH_ROUTE", health)
        return AppClient(create_app(make_runtime(artifact_dir), keys), raise_server_exceptions=False)

    return start


@pytest.mark.parametrize("path", [f"{USUAL}:predict", "/predict", "/classify", "/v1/models/tiny-classify:predict"])
def test_route_of_predictions_is_that_of_the_variable(path, serve):
    with serve(path) as client:
        own = client.post("/classify", json={"inputs": BODY["instances"], "parameters": BODY["parameters"]}).json()

        assert client.post(path, json=BODY).json() == {"predictions": own}


def test_first_model_answers_unless_the_path_names_one(serve):
    sample = {"question": "Who?", "context": "Clara."}
    with serve("/v1/models/tiny-qa:predict") as client:
        assert client.post("/v1/models/tiny-qa:predict", json={"instances": [sample]}).status_code == 200
    with serve("/p") as client:
        assert client.post("/p", json={"instances": [sample]}).status_code == 422


def test_raw_prediction_is_a_request_of_the_route_itself(serve):
    """Also if one of its texts is the name of the field."""
    with serve("/classify") as client:
        own = client.post("/models/classify", json={"inputs": "instances"}).json()
        assert client.post("/classify", json={"inputs": "instances"}).json() == own
    with serve("/predict") as client:
        assert client.post("/predict", json={"inputs": "instances"}).json() == own[0]


def test_health_check_is_public_and_tells_readiness(serve, artifact_dir):
    with serve("/p", "/h", ApiKeys([make_key("alice")[1]])) as client:
        assert client.get("/h").status_code == 200
        assert client.post("/p", json=BODY).status_code == 401
    runtime = make_runtime(artifact_dir)
    with AppClient(create_app(runtime)) as client:
        runtime.admission.close()
        assert (client.get("/h").status_code, client.post("/p", json=BODY).status_code) == (503, 503)


@pytest.mark.parametrize(
    "body", [{"instances": []}, {"instances": SECRET}, {"x": [SECRET]}, {"instances": [{SECRET: 1}]}]
)
def test_invalid_request_is_refused(body, serve):
    with serve("/p") as client:
        response = client.post("/p", json=body)

    assert (response.status_code, response.json().keys()) == (422, {"error", "code"})
    assert SECRET not in response.text


@pytest.mark.parametrize("route", ["predict", "/a b", "/{model}", "/é", "https://a/b?c", "/batch"])
def test_route_that_is_no_path_stops_the_server(route, serve):
    with pytest.raises(ValidationError, match="is not a path such as /vertex"):
        serve(route)


def test_port_is_that_of_the_variable_unless_a_setting_names_one(monkeypatch):
    monkeypatch.setenv("AIP_HTTP_PORT", "8080")

    assert Settings().port == 8080
    assert Settings(port=1).port == 1
    assert health_check.address({"AIP_HTTP_PORT": "8080"}, []) == ("127.0.0.1", 8080, False)
    monkeypatch.setenv("SWIFTLET_PORT", "2")
    assert Settings().port == 2
