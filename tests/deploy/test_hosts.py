"""What the how-to about hosts names agrees with the server."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings, check_variables
from tests.support.markdown import blocks, text_of
from tests.support.paths import ROOT

PAGE = text_of(ROOT / "docs/how-to/hosts.md")
SPACE = ROOT / "docker/spaces"
PORT = Settings.model_fields["port"].default


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(LocalRuntime.load(Settings(engine="echo")))) as client:
        yield client


def front_matter(path: Path) -> dict[str, object]:
    card: dict[str, object] = yaml.safe_load(path.read_text("utf-8").split("---")[1])
    return card


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"\b(SWIFTLET_[A-Z_]+)=([\w./-]+)", text))


def test_variables_of_the_page_are_settings():
    check_variables(re.findall(r"\bSWIFTLET_[A-Z_]+", PAGE + (SPACE / "Dockerfile").read_text()))


def test_space_serves_on_the_port_of_its_card_as_its_user():
    dockerfile = (SPACE / "Dockerfile").read_text()
    card = front_matter(SPACE / "README.md")

    assert (card["sdk"], card["app_port"], card["license"]) == ("docker", PORT, "apache-2.0")
    assert variables(dockerfile) == {"SWIFTLET_HOST": "0.0.0.0", "SWIFTLET_PORT": str(card["app_port"])}
    assert re.findall(r"^(?:USER|EXPOSE) (\d+)", dockerfile, re.MULTILINE) == ["1000", str(PORT)]
    (base,) = re.findall(r"^ARG BASE=(.*)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert f"FROM {base}\n" in dockerfile


def test_image_leaves_its_port_to_the_host_and_starts_with_serve():
    """SageMaker adds the argument `serve`, and Vertex AI sets AIP_HTTP_PORT."""
    dockerfile = (ROOT / "docker/Dockerfile").read_text()

    assert "SWIFTLET_PORT" not in dockerfile
    assert 'ENTRYPOINT ["swiftlet"]\nCMD ["serve"]' in dockerfile


def test_deployment_on_azure_has_routes_of_the_server(client):
    (deployment,) = [yaml.safe_load(block) for block in blocks(PAGE, "yaml")]
    routes = deployment["environment"]["inference_config"]

    assert {route["port"] for route in routes.values()} == {PORT}
    assert client.get(routes["liveness_route"]["path"]).status_code == 200
    assert client.get(routes["readiness_route"]["path"]).status_code == 200
    assert client.post(routes["scoring_route"]["path"], json={"inputs": "a"}).status_code == 200


def test_commands_for_google_name_the_port_and_valid_requests(client):
    commands = [shlex.split(block.replace("<(", '"').replace("')", "'\"")) for block in blocks(PAGE, "sh")]
    run = next(command for command in commands if "run" in command)
    probe = dict(part.split("=") for part in next(word for word in run if "probe" in word).split("=", 1)[1].split(","))

    assert f"--port={PORT}" in run
    assert probe == {"httpGet.path": "/health/ready", "httpGet.port": str(PORT)}
    (body,) = re.findall(r"echo '(\{.*\})'", PAGE)
    assert len(client.post("/vertex", json=json.loads(body)).json()["predictions"]) == 1


def test_request_to_sagemaker_is_answered(client):
    (body,) = re.findall(r"json\.dumps\((\{.*\})\)", PAGE)
    (attributes,) = set(re.findall(r'CustomAttributes="(timeout[^"]*)"', PAGE))

    response = client.post("/invocations", content=body, headers={"X-Amzn-SageMaker-Custom-Attributes": attributes})
    assert response.status_code == 200
    assert client.get("/ping").content == b""
