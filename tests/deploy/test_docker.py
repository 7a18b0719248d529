"""The images are pinned to the last byte, and hold what pyproject.toml says."""

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

from swiftlet_serve.service.settings import Settings
from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "docker/Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WANTED = {
    "cpu": PROJECT["project"]["dependencies"],
    "gpu": PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["torch"],
    "build": PROJECT["build-system"]["requires"],
}


def locked(name: str) -> dict[str, str]:
    """Each package of a lock with its version; all of them have hashes."""
    text = (ROOT / f"docker/{name}.lock").read_text("utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n {4}--hash=sha256:[0-9a-f]{64})*)", text, re.MULTILINE)
    assert len(entries) == text.count("==") > 0
    assert all(hashes for _, _, hashes in entries)
    return {package: version for package, version, _ in entries}


@pytest.mark.parametrize("name", WANTED)
def test_a_lock_holds_what_is_asked_for(name):
    """`make lock` writes them."""
    for wanted in WANTED[name]:
        package, version = wanted.partition(";")[0].split("==")

        assert locked(name)[package] == version


def test_no_image_can_fetch_a_model_and_that_of_the_cpu_has_no_torch():
    hub = {"huggingface-hub", "hf-xet", "httpx2", "requests"}

    assert not locked("cpu").keys() & (hub | {"torch", "onnx"})
    assert not locked("gpu").keys() & hub


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_bill_of_materials_names_each_package_of_the_lock_and_swiftlet(name):
    """Of `docker/sbom`, which checks by itself that what it writes is CycloneDX."""
    environment = os.environ | {"UV": str(Path(sys.executable).parent / "uv"), "UV_OFFLINE": "1"}
    told = subprocess.run([ROOT / "docker/sbom", name], env=environment, capture_output=True, text=True)
    if "network was disabled" in told.stderr:
        pytest.skip("its tool was never fetched: make sbom")
    bill = json.loads(told.stdout)
    hashes = {each["content"] for part in bill["components"] for each in part["externalReferences"][0]["hashes"]}

    assert {each["name"]: each["version"] for each in bill["components"]} == locked(name)
    assert hashes == set(re.findall(r"sha256:(\w+)", (ROOT / f"docker/{name}.lock").read_text("utf-8")))
    assert bill["metadata"]["component"]["name"] == "swiftlet"
    assert bill["metadata"]["component"]["version"] == PROJECT["project"]["version"]


def test_bases_are_pinned_by_digest():
    pinned = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
    (base,) = re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE)
    stages = set(re.findall(r" AS ([\w-]+)$", DOCKERFILE, re.MULTILINE))
    others = [each["image"] for each in COMPOSE["services"].values() if "build" not in each]

    assert len(others) == 2
    assert all(pinned.fullmatch(image) for image in [base, *others])
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) <= stages | {"${BASE}"}


def test_packages_are_installed_as_locked_only():
    joined = DOCKERFILE.replace("\\\n", "")
    commands = [line for line in re.findall(r"^RUN (.*)$", joined, re.MULTILINE) if "pip" in line]
    installs = [each for line in commands for each in line.split("&&") if " install " in each]

    assert installs
    for each in installs:
        assert "--no-deps" in each
        assert "--require-hashes --only-binary :all:" in each or "--no-index" in each


def test_the_dockerfile_has_nothing_that_a_linter_minds():
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert found

    assert subprocess.run([found, ROOT / "docker/Dockerfile"], capture_output=True, text=True).stdout == ""


def test_the_environment_of_the_image_is_settings():
    given = dict(re.findall(r"\bSWIFTLET_(\w+)=(\S+)", DOCKERFILE))
    told = Settings(**{name.lower(): value for name, value in given.items()})

    assert (told.host, told.port, told.admin_host, told.admin_port) == ("0.0.0.0", 8000, "0.0.0.0", 9000)
    assert f"'127.0.0.1', {told.admin_port}" in DOCKERFILE
    assert f"EXPOSE {told.port} {told.admin_port}" in DOCKERFILE


@pytest.fixture(params=COMPOSE["services"])
def composed(request) -> Any:
    return COMPOSE["services"][request.param]


def test_everything_composed_is_restricted_bounded_and_for_this_machine_only(composed):
    assert composed["read_only"]
    assert composed["cap_drop"] == ["ALL"]
    assert composed["security_opt"] == ["no-new-privileges:true"]
    assert composed["mem_limit"]
    assert composed["pids_limit"]
    assert all(port.startswith("127.0.0.1:") for port in composed["ports"])


def test_what_is_composed_is_let_finish():
    takes = Settings.model_fields["drain_s"].default + Settings.model_fields["shutdown_timeout_s"].default + 7

    for name in ("swiftlet", "swiftlet-gpu"):
        assert float(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s")) >= takes
