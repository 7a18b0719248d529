"""The images: their locks, the Dockerfile and the compose file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from swiftlet_serve.cli import health_check
from swiftlet_serve.settings import Settings
from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "docker/Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
SERVING = PROJECT["project"]["dependencies"] + EXTRAS["grpc"] + EXTRAS["otel"] + EXTRAS["sign"]
REQUIRED = {"cpu": SERVING, "gpu": SERVING + EXTRAS["torch"], "build": PROJECT["build-system"]["requires"]}


def locked(name: str) -> dict[str, str]:
    """Returns the version of each package of a lock. Every package has hashes."""
    text = (ROOT / f"docker/{name}.lock").read_text("utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n {4}--hash=sha256:[0-9a-f]{64})*)", text, re.MULTILINE)
    assert len(entries) == text.count("==") > 0
    assert all(hashes for _, _, hashes in entries)
    return {package: version for package, version, _ in entries}


@pytest.mark.parametrize("name", REQUIRED)
def test_lock_holds_the_versions_of_pyproject(name):
    """If this fails, run `make lock`."""
    for requirement in REQUIRED[name]:
        package, version = requirement.partition(";")[0].split("==")

        assert locked(name)[package] == version


def test_locks_have_no_hub_client_and_no_torch_for_a_cpu():
    hub = {"huggingface-hub", "hf-xet", "httpx2"}

    assert not locked("cpu").keys() & (hub | {"torch", "onnx"})
    assert not locked("gpu").keys() & hub


@pytest.mark.exhaustive  # `.ci/run` makes both bills
def test_sbom_names_swiftlet_and_each_package_of_the_lock():
    """`docker/sbom` itself checks that its output is valid CycloneDX. The lock for a GPU has all kinds of packages."""
    name = "gpu"
    environment = os.environ | {"UV": str(Path(sys.executable).parent / "uv"), "UV_OFFLINE": "1"}
    done = subprocess.run([ROOT / "docker/sbom", name], env=environment, capture_output=True, text=True)
    if "network was disabled" in done.stderr:
        pytest.skip("cyclonedx-bom is not in uv's cache: make sbom")
    bill = json.loads(done.stdout)
    hashes = {each["content"] for part in bill["components"] for each in part["externalReferences"][0]["hashes"]}

    assert {each["name"]: each["version"] for each in bill["components"]} == locked(name)
    assert hashes == set(re.findall(r"sha256:(\w+)", (ROOT / f"docker/{name}.lock").read_text("utf-8")))
    assert bill["metadata"]["component"]["name"] == PROJECT["project"]["name"]
    assert bill["metadata"]["component"]["version"] == PROJECT["project"]["version"]


def test_base_images_are_pinned_by_digest():
    pinned = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
    (base,) = re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE)
    stages = set(re.findall(r" AS ([\w-]+)$", DOCKERFILE, re.MULTILINE))
    others = [each["image"] for each in COMPOSE["services"].values() if "build" not in each]

    assert len(others) == 2
    assert all(pinned.fullmatch(image) for image in [base, *others])
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) <= stages | {"${BASE}"}


def test_dockerfile_installs_locked_packages_only():
    joined = DOCKERFILE.replace("\\\n", "")
    commands = [line for line in re.findall(r"^RUN (.*)$", joined, re.MULTILINE) if "pip" in line]
    installs = [each for line in commands for each in line.split("&&") if " install " in each]

    assert installs
    for each in installs:
        assert "--no-deps" in each
        assert "--require-hashes --only-binary :all:" in each or "--no-index" in each


def test_dockerfile_passes_hadolint():
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert found

    files = ROOT / "docker/Dockerfile", ROOT / "docker/spaces/Dockerfile"
    assert subprocess.run([found, *files], capture_output=True, text=True).stdout == ""


def test_image_environment_is_valid_settings():
    variables = dict(re.findall(r"\bSWIFTLET_(\w+)=(\S+)", DOCKERFILE))
    settings = Settings(**{name.lower(): value for name, value in variables.items()})

    assert (settings.host, settings.port, settings.admin_host, settings.admin_port) == (
        "0.0.0.0",
        8000,
        "0.0.0.0",
        9000,
    )
    assert health_check.address({f"SWIFTLET_{name}": value for name, value in variables.items()}, []) == (
        "127.0.0.1",
        settings.admin_port,
        False,
    )
    assert f'CMD ["python3", "-Im", "{health_check.__name__}"]' in DOCKERFILE
    assert f"EXPOSE {settings.port} 8001 {settings.admin_port}" in DOCKERFILE


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_layers_that_change_often_come_last(target):
    """A client that has an earlier version pulls the code alone, if the packages, kernels and models are as before."""
    stage = DOCKERFILE.split(f"FROM runtime AS {target}\n")[1].split("\nFROM ")[0]

    assert re.findall(r"^COPY --from=(\S+)", stage, re.MULTILINE) == [f"build-{target}", "app", "app", "app"]
    assert re.findall(r"^COPY --from=app /build/(\w+) /$", stage, re.MULTILINE) == ["kernels", "models", "code"]
    assert stage.index("ARG VERSION") > stage.index("COPY --from=app /build/code")


def test_only_changes_of_the_kernels_compile_them_again():
    stage = DOCKERFILE.split("FROM tools AS kernels\n")[1].split("\nFROM ")[0]

    assert re.findall(r"^COPY (.*)$", stage, re.MULTILINE) == [
        "service/build_kernels.py service/",
        "service/swiftlet_serve/native service/swiftlet_serve/native",
        "models/swiftlet_models/native models/swiftlet_models/native",
    ]


@pytest.fixture(params=COMPOSE["services"])
def compose_service(request) -> Any:
    return COMPOSE["services"][request.param]


def test_compose_services_are_restricted_bounded_and_local(compose_service):
    assert compose_service["read_only"]
    assert compose_service["cap_drop"] == ["ALL"]
    assert compose_service["security_opt"] == ["no-new-privileges:true"]
    assert compose_service["mem_limit"]
    assert compose_service["pids_limit"]
    assert all(port.startswith("127.0.0.1:") for port in compose_service["ports"])


def test_compose_grace_period_covers_the_shutdown():
    shutdown_s = Settings.model_fields["drain_s"].default + Settings.model_fields["shutdown_timeout_s"].default + 7

    for name in ("swiftlet", "swiftlet-gpu"):
        assert float(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s")) >= shutdown_s
