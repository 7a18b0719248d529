"""The CPU image, built and run as Kubernetes runs it: its own user, a read-only root file system, process 1.

It takes minutes, so `make test` skips it: run `make image-test`. Without a Docker engine, `docker/build` uses buildah.
The container has its own namespaces, and a network with a loopback interface only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from swiftlet_serve.offline.environment import processor
from tests.deploy.test_docker import PROJECT, locked
from tests.support.paths import ROOT

TOOLS = ("buildah", "debootstrap", "ip", "nsenter", "unshare")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
STORAGE = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
BUNDLED = {path.parent.name for path in (ROOT / "models/swiftlet_models/bundled").glob("*/manifest.json")}
START_S = 120.0
GRACE_S = 35.0  # k8s/base/deployment.yaml

pytestmark = [
    pytest.mark.skipif("SWIFTLET_IMAGE_TEST" not in os.environ, reason="takes minutes: make image-test"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make namespaces"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]

# As the kubelet runs a restricted pod: its own mounts, processes and network, all read-only, without capabilities.
RUN = """
ip link set lo up
mount --bind "$0" "$0" && mount --options remount,bind,ro "$0"
mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev"
exec chroot "$0" setpriv --reuid "$1" --regid "$1" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
    env -i "${@:2}"
"""
ASK = """
import sys, urllib.request as web
url, body = sys.argv[1], sys.stdin.buffer.read()
headers = {"Content-Type": "application/json", "X-Request-Timeout-Ms": "300000"}
with web.urlopen(web.Request(url, body or None, headers), timeout=300) as answer:
    sys.stdout.write(answer.read().decode())
"""


@dataclass(frozen=True)
class Image:
    root: Path
    config: dict[str, Any]

    @property
    def packages(self) -> Path:
        (found,) = self.root.glob("opt/swiftlet/lib/python3*/site-packages")
        return found


@dataclass(frozen=True, eq=False)
class Container:
    """The server as process 1 of its namespaces."""

    image: Image
    process: subprocess.Popen[str]
    pid: int  # of the server, in this machine's namespace

    def ask(self, path: str, body: Any = None, port: int = 8000) -> subprocess.Popen[bytes]:
        command = [
            "nsenter",
            "--target",
            str(self.pid),
            "--net",
            sys.executable,
            "-c",
            ASK,
            f"http://127.0.0.1:{port}{path}",
        ]
        asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert asking.stdin is not None
        asking.stdin.write(b"" if body is None else json.dumps(body).encode())
        asking.stdin.close()
        asking.stdin = None
        return asking

    def answer(self, path: str, body: Any = None, port: int = 8000) -> Any:
        output, error = self.ask(path, body, port).communicate()
        assert output, error.decode()
        return json.loads(output)

    def run(self, *command: str) -> int:
        """Returns the exit status of a command in the container."""
        return self.execute(*command).returncode

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container."""
        inside = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--root", "--wd"]
        environment = ["env", "-i", *self.image.config["Env"]]
        user = ["setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups"]
        return subprocess.run([*inside, *user, *environment, *command], capture_output=True, text=True)

    def status(self, pid: int | None = None) -> dict[str, str]:
        text = Path(f"/proc/{pid or self.pid}/status").read_text()
        return {name: value.strip() for name, value in re.findall(r"^(\w+):(.*)$", text, re.MULTILINE)}

    def process_tree(self) -> list[int]:
        found = [self.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, task.read_text().split())
        return found

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(GRACE_S)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    storage = os.environ | STORAGE
    subprocess.run([ROOT / "docker/build", "cpu"], env=storage, check=True, stdout=subprocess.DEVNULL)

    def buildah(*arguments: str) -> str:
        return subprocess.run(["buildah", *arguments], env=storage, check=True, capture_output=True, text=True).stdout

    config = json.loads(buildah("inspect", "--type", "image", "swiftlet:cpu"))["Docker"]["config"]
    container = buildah("from", "swiftlet:cpu").strip()
    try:
        yield Image(Path(buildah("mount", container).strip()), config)
    finally:
        buildah("rm", container)


@contextmanager
def starting(image: Image) -> Iterator[Container]:
    """Starts the command of the image, with the environment and user of the image."""
    user, _, group = image.config["User"].partition(":")
    assert user == group
    assert user.isdigit()
    command = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--fork",
        "--kill-child",
        "bash",
        "-c",
        RUN,
        str(image.root),
        user,
    ]
    command += [*image.config["Env"], *image.config["Entrypoint"], *image.config["Cmd"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_until(lambda: bool(children.read_text()))
            yield Container(image, process, int(children.read_text()))
        finally:
            # `--kill-child` does not kill a process that changed its user.
            for child in children.read_text().split() if process.poll() is None else ():
                os.kill(int(child), signal.SIGKILL)
            process.kill()


@contextmanager
def serving(image: Image) -> Iterator[Container]:
    with starting(image) as container:
        assert container.process.stdout is not None
        assert "http://" in container.process.stdout.readline()
        yield container


@pytest.fixture(scope="module")
def container(image) -> Iterator[Container]:
    started = time.monotonic()
    with serving(image) as running:
        print(f"ready after {time.monotonic() - started:.1f} s")
        yield running


def wait_until(holds) -> None:
    """Polls until a condition holds: the kernel sends no event for it."""
    deadline = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_image_answers_the_three_tasks(container):
    (((label,),), answer, tokens) = (
        container.answer("/classify", {"inputs": "A warm, funny and clever film.", "parameters": {"top_k": 1}}),
        container.answer("/qa", {"inputs": {"question": "Where does Clara live?", "context": "Clara lives in Bern."}}),
        container.answer("/fill-mask", {"inputs": "Paris is the [MASK] of France."}),
    )

    assert label["label"] == "POSITIVE"
    assert answer["answer"] == "in Bern"
    assert "capital" in {each["token_str"] for each in tokens}


@pytest.mark.skipif("avx2" not in processor(), reason="there is no kernel for this CPU")
def test_image_has_compiled_kernels(container):
    checked = container.execute("swiftlet", "check")

    assert checked.returncode == 0, checked.stderr
    engines = re.findall(r"^ *engine +(\S+)", checked.stdout, re.MULTILINE)
    assert engines == ["native"] * len(BUNDLED)


def test_image_reports_ready_on_the_admin_port_and_in_its_health_check(container):
    kind, *command = container.image.config["Healthcheck"]["Test"]

    assert container.answer("/health/ready", port=9000) == {"ready": True}
    assert kind == "CMD"
    assert container.run(*command) == 0
    assert container.run("env", "SWIFTLET_ADMIN_PORT=9", *command) == 1
    assert container.run("env", "--unset=SWIFTLET_ADMIN_PORT", *command) == 0, "the public port"


def test_image_tells_its_version_and_revision(container):
    labels = {name.rpartition(".")[2]: value for name, value in container.image.config["Labels"].items()}
    told = container.execute("python3", "-c", "from swiftlet_serve import build_info as b; print(b.revision())")

    assert labels["version"] == PROJECT["project"]["version"]
    assert labels["licenses"] == PROJECT["project"]["license"]
    assert labels["revision"] == told.stdout.strip() != ""


def test_image_runs_without_privileges_and_cannot_write(container):
    for pid in container.process_tree():
        status = container.status(pid)

        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
        assert status["CapEff"] == status["CapBnd"] == "0000000000000000"
        assert status["NoNewPrivs"] == "1"
    assert container.status()["NSpid"].split()[-1] == "1"
    for folder in ("/tmp", "/opt/swiftlet", "/home"):
        assert container.run("touch", f"{folder}/something") != 0


def test_image_holds_only_the_packages_for_serving(image):
    packages = {path.name for path in image.packages.iterdir()}

    assert {"onnxruntime", "tokenizers", "swiftlet_serve", "swiftlet_models"} <= packages
    assert not packages & {"torch", "huggingface_hub", "pip", "pytest", "transformers"}
    assert not [path for path in image.root.glob("opt/swiftlet/**/*") if path.stat().st_mode & 0o022]
    assert {path.parent.name for path in image.packages.glob("swiftlet_models/bundled/*/manifest.json")} == BUNDLED


def test_image_holds_exactly_the_packages_of_its_lock(image):
    """Therefore the bill of materials that `docker/sbom` makes of the lock describes the image."""
    found = distributions(path=[str(image.packages)])
    installed = {each.name.lower().replace("_", "-"): each.version for each in found}
    version = installed.pop("swiftlet-serve")

    assert installed == locked("cpu")
    assert version == PROJECT["project"]["version"]


def test_image_is_small(image):
    size = sum(path.lstat().st_size for path in (image.root / "opt/swiftlet").rglob("*")) / 1e6
    print(f"{size:.0f} MB on top of the base")

    assert size < 245


HEAVY = {
    "classify": {"inputs": ["word " * 500] * 8},
    "embed": {"inputs": ["word " * 500] * 8},
    "qa": {"inputs": {"question": "Who?", "context": "Clara is a baker. " * 500}},
    "fill-mask": {"inputs": ["the [MASK] of " * 16] * 4},
}


def test_image_memory_fits_the_limit_of_a_pod(container):
    for name in sorted(BUNDLED):
        task = json.loads((ROOT / "models/swiftlet_models/bundled" / name / "manifest.json").read_text("utf-8"))["task"]
        output, error = container.ask(f"/{task}", HEAVY[task] | {"model": name}).communicate()
        assert output, error.decode()
    resident = [int(container.status(pid)["VmRSS"].split()[0]) // 1024 for pid in container.process_tree()]
    print(
        f"resident: {resident} MiB, threads: {[container.status(pid)['Threads'] for pid in container.process_tree()]}"
    )

    assert sum(resident) < 768


def test_image_finishes_requests_on_sigterm_and_exits_with_0(image):
    with serving(image) as container:
        asking = container.ask("/classify", {"inputs": ["word " * 200] * 32, "parameters": {"top_k": 1}})
        sockets = Path(f"/proc/{container.pid}/net/tcp")
        wait_until(lambda: ":1F40" in "".join(re.findall(r"^ *\d+: (.*) 01 ", sockets.read_text(), re.MULTILINE)))

        assert container.stop() == 0
        assert len(json.loads(asking.communicate()[0])) == 32


def test_image_exits_with_0_on_sigterm_during_start(image):
    with starting(image) as container:
        maps = Path(f"/proc/{container.pid}/maps")
        wait_until(lambda: "pydantic_core" in maps.read_text())  # it still imports modules

        assert container.stop() == 0
