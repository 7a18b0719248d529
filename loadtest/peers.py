"""The servers that `compare.py` measures, each with its best settings: how they start, and how they are asked."""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from loadtest import own_model_servers
from loadtest.own_model_servers import EMBEDDERS, first_answer, install, running
from loadtest.server_process import module_server, serving, wait_until_idle
from swiftlet_serve.benchmark.baselines import ENGINES, missing_package

SERVER_OPTIONS: Final = ("--log-level", "error", "--timeout-ms", "60000")
OURS: Final = {"swiftlet": "native", "swiftlet, no network": "echo"}  # with their engines
TIMEOUT_S: Final = 120
TEXT: Final = "query: It works."


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    name: str
    url: str
    pid: int
    is_lone: bool = False  # all cores answer one call, so only one caller is measured
    routes: frozenset[str] | None = None  # None: the routes of all models
    form: own_model_servers.Server | None = None  # of its requests for vectors; None: that of Swiftlet

    def request(self, path: str, body: bytes) -> tuple[str, bytes]:
        """Returns the path and the body of a request in the server's form."""
        if self.form is None:
            return path, body
        return self.form.paths[path.removeprefix("/")], self.form.content(json.loads(body)["inputs"])

    def ask(self, path: str, body: bytes) -> Any:
        """Returns the answer to a request.

        Raises:
            SystemExit: the server refused the request.
        """
        own_path, content = self.request(path, body)
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{own_path}", content, headers)  # noqa: S310  # loopback
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310  # loopback
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{self.name} answered {error.code} to {own_path}.") from None


@dataclass(frozen=True)
class Baseline:
    """A server of this folder that serves artifacts."""

    name: str
    module: str
    engine: str  # of `swiftlet bench`
    packages: Sequence[str] = ()  # beside those of the engine
    option: str = ""  # whose value is the number of cores
    is_lone: bool = False

    @property
    def missing(self) -> str | None:
        """The first package that is not installed."""
        absent = (package for package in self.packages if find_spec(package) is None)
        return missing_package(ENGINES[self.engine]) or next(absent, None)


_ORT: Final = partial(Baseline, module="loadtest.baseline_fastapi_onnx", engine="ort_stock")
_OPENVINO: Final = partial(Baseline, module="loadtest.baseline_fastapi_openvino", engine="openvino")
BASELINES: Final[Mapping[str, Baseline]] = {
    "ort": _ORT("FastAPI and ORT int8"),
    "ort-processes": _ORT("FastAPI and ORT int8, a process a core", option="--processes"),
    "ort-lone": _ORT("FastAPI and ORT int8, a call on all cores", option="--threads", is_lone=True),
    "mosec": Baseline("mosec and ORT int8", "loadtest.baseline_mosec", "ort_stock", ("mosec",)),
    "openvino": _OPENVINO("FastAPI and OpenVINO"),
    "openvino-lone": _OPENVINO("FastAPI and OpenVINO, a call on all cores", option="--threads", is_lone=True),
}
PIPELINE: Final = "transformers"
NAMES: Final = (*BASELINES, PIPELINE, *EMBEDDERS)


class LeftOut(Exception):
    """Raised when a server cannot take part. The message is a clause that gives the reason."""


@dataclass(frozen=True)
class Setup:
    """What the servers serve."""

    models: Sequence[str]
    tasks: frozenset[str]  # of the models
    cores: int
    checkpoint: Path | None = None  # that transformers loads: a classifier, or the embedding model of `models`
    environments: Path | None = None  # a folder with an environment for each server that has its own


@contextmanager
def swiftlet(name: str, setup: Setup) -> Iterator[Server]:
    """Runs Swiftlet with the engine of this name in `OURS`."""
    with serving(setup.models, OURS[name], *SERVER_OPTIONS) as server:
        yield Server(name, server.url, server.pid)


def peer(name: str, setup: Setup) -> AbstractContextManager[Server]:
    """Returns another server, which runs in the context. Its first start may take minutes.

    Raises:
        LeftOut: it is not installed, or has no model to serve.
    """
    if name in BASELINES:
        return _baseline(BASELINES[name], setup)
    if setup.checkpoint is None:
        raise LeftOut("it needs a --checkpoint")
    if name in EMBEDDERS:
        return _embedder(name, setup, setup.checkpoint)
    if "classify" not in setup.tasks:
        raise LeftOut("it serves classifiers alone")
    routes = frozenset({"/classify"})
    return _module("transformers pipeline", "loadtest.baseline_transformers_pipeline", [str(setup.checkpoint)], routes)


def _baseline(baseline: Baseline, setup: Setup) -> AbstractContextManager[Server]:
    if baseline.missing:
        raise LeftOut(f"{baseline.missing} is not installed")
    if baseline.is_lone and setup.cores == 1:
        raise LeftOut("there is one core")
    options = [baseline.option, str(setup.cores)] if baseline.option else []
    return _module(baseline.name, baseline.module, [*options, *setup.models], is_lone=baseline.is_lone)


@contextmanager
def _module(
    name: str, module: str, arguments: Sequence[str], routes: frozenset[str] | None = None, *, is_lone: bool = False
) -> Iterator[Server]:
    with module_server(module, *arguments) as (url, pid):
        wait_until_idle(pid)  # its processes may still load their models
        yield Server(name, url, pid, is_lone, routes)


def _embedder(name: str, setup: Setup, checkpoint: Path) -> AbstractContextManager[Server]:
    if setup.environments is None:
        raise LeftOut("it needs the folder of --environments")
    if "embed" not in setup.tasks:
        raise LeftOut("it serves embedding models alone")
    return _own(name, EMBEDDERS[name], checkpoint.resolve(), setup.environments.resolve())


@contextmanager
def _own(name: str, form: own_model_servers.Server, checkpoint: Path, environments: Path) -> Iterator[Server]:
    """Runs a server in its environment, which is made if needed."""
    install(form, environments / name, wheel="")
    with tempfile.TemporaryDirectory() as home, running(form, environments / name, checkpoint, Path(home)) as started:
        process, port = started
        first_answer(form, process, port, "embed", TEXT)
        yield Server(name, f"http://127.0.0.1:{port}", process.pid, routes=frozenset({"/embed"}), form=form)
