"""A baseline for comparison: mosec, ONNX Runtime with its stock int8, and a process for each core and artifact.

    python -m loadtest.baseline_mosec ARTIFACT [ARTIFACT ...]

It needs `mosec`, and prints its URL. Batches of 4 requests are its best setting for a few callers: with room for 16,
one process gets all eight requests of eight callers, and the other cores have nothing to do.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import mosec

from loadtest.baseline_answers import ORT_TOKENS, Answers, load_ort, prepare
from swiftlet_models.artifact import open_artifact
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import json_text

ARTIFACT: Final = "BASELINE_ARTIFACT"
FOLDER: Final = "BASELINE_FOLDER"
MAX_REQUESTS: Final = 4  # of a batch
WAIT_MS: Final = 1  # for further requests of a batch
TIMEOUT_S: Final = 60
POLL_S: Final = 0.1


class Worker(mosec.Worker):  # type: ignore[misc]  # the package is not among those of development
    def __init__(self) -> None:
        super().__init__()
        self.answers = Answers(os.environ[ARTIFACT], Path(os.environ[FOLDER]), load_ort, batch_tokens=ORT_TOKENS)

    def forward(self, data: Any) -> Any:
        return self.answers(data)

    def serialize(self, data: Any) -> bytes:
        return json_text.write(data)


def announce(url: str) -> None:
    """Prints the URL once the server answers. mosec calls nothing then."""
    while True:
        try:
            urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S).close()  # noqa: S310  # of this machine
            break
        except OSError:
            time.sleep(POLL_S)
    print(url, flush=True)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {"ADDRESS": "127.0.0.1", "PORT": port, "TIMEOUT": 1000 * TIMEOUT_S, "LOG_LEVEL": "error"}
    os.environ.update({f"MOSEC_{name}": str(value) for name, value in options.items()})
    cores = Settings().cores
    folders = prepare("ort_stock", sys.argv[1:])
    server = mosec.Server()
    for artifact, folder in folders.items():
        server.append_worker(
            Worker,
            num=cores,
            max_batch_size=MAX_REQUESTS,
            max_wait_time=WAIT_MS,
            env=[{ARTIFACT: artifact, FOLDER: str(folder)}] * cores,
            timeout=TIMEOUT_S,
            route=f"/{open_artifact(locate([artifact])[0]).manifest.task}",
        )
    threading.Thread(target=announce, args=(f"http://127.0.0.1:{port}",), daemon=True).start()
    server.run()
