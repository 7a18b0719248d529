"""Repositories of a hub: what is downloaded, and one sentence for each way in which that fails."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swiftlet_models.checkpoint_files import locate
from swiftlet_models.checkpoint_tensors import ConversionError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {  # status and code of the hub's answer
    "private": (401, "RepoNotFound"),
    "gated": (403, "GatedRepo"),
    "unknown": (404, "RepoNotFound"),
    "revision": (404, "RevisionNotFound"),
    "broken": (500, ""),
}


class Hub(ThreadingHTTPServer):
    """A hub of one repository. A fault is a key of `REFUSALS`, or `cut`: large files break off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.fault = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        files, path = self.server.files, self.path.partition("?")[0]
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if self.server.fault in REFUSALS:
            status, code = REFUSALS[self.server.fault]
            self.answer(status, b"{}", {"X-Error-Code": code})
        elif "/revision/" in path:
            siblings = [{"rfilename": name} for name in files]
            self.answer(200, json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode())
        elif "/tree/" in path:
            entries = [{"type": "file", "path": n, "size": len(b), "oid": digest(b)} for n, b in files.items()]
            self.answer(200, json.dumps(entries).encode())
        elif name in files:
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            headers = {"ETag": f'"{digest(files[name])}"', "X-Repo-Commit": COMMIT}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(files[name]) - 1}/{len(files[name])}"
            self.answer(206 if start else 200, files[name][start:], headers)
        else:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.fault == "cut" and len(body) > 1000:
            body, self.close_connection = body[:1000], True
        self.wfile.write(body)


def digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, and an empty cache of it."""
    with Hub() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        server.files = {"config.json": b"{}", "vocab.txt": b"[PAD]\n", "model.safetensors": bytes(range(256)) * 40}
        yield server
        server.shutdown()


def names(directory: Path) -> set[str]:
    return {str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file()}


def refused() -> str:
    with pytest.raises(ConversionError) as caught:
        locate("org/name")
    message = str(caught.value)
    assert message.startswith("'org/name' is not in the local cache and cannot be downloaded: ")
    return message


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (("pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "optimizer.pt"), {"model.safetensors"}),
        (("model_head.pkl", "config_setfit.json"), {"model.safetensors", "model_head.pkl", "config_setfit.json"}),
    ],
)
def test_weights_are_downloaded_once(hub: Hub, more: tuple[str, ...], wanted: set[str]) -> None:
    hub.files |= dict.fromkeys(more, b"x")
    directory, origin = locate("org/name")
    assert names(directory) == {"config.json", "vocab.txt"} | wanted
    assert origin == {"hub": "org/name", "revision": COMMIT}
    hub.fault = "broken"
    assert locate("org/name") == (directory, origin)


def test_prompts_and_routes_are_downloaded(hub: Hub) -> None:
    more = {"chat_template.jinja", "additional_chat_templates/reranker.jinja", "1_LogitScore/config.json"}
    more |= {
        "router_config.json",
        "query_0_SparseStaticEmbedding/model.safetensors",
        "document_1_SpladePooling/config.json",
    }
    hub.files |= dict.fromkeys(more, b"x")
    assert more <= names(locate("org/name")[0])


@pytest.mark.parametrize(
    "weights",
    [
        ("pytorch_model.bin",),
        ("pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"),
        ("onnx/model.onnx", "onnx/model.onnx_data"),
        ("adapter_config.json", "adapter_model.safetensors"),
    ],
)
def test_other_weights_are_downloaded_if_there_are_no_better_ones(hub: Hub, weights: tuple[str, ...]) -> None:
    del hub.files["model.safetensors"]
    hub.files |= dict.fromkeys((*weights, "onnx/model_quantized.onnx"), b"x")
    assert names(locate("org/name")[0]) == {"config.json", "vocab.txt", *weights}


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("private", "or it is private; check the name, or set HF_TOKEN."),
        ("gated", "accept its terms on the hub, and set HF_TOKEN."),
        ("unknown", "there is no such repository, or it is private; check the name, or set HF_TOKEN."),
        ("revision", "it has no such revision."),
        ("broken", "copy the files here, and name their directory."),
    ],
)
def test_refusals_of_the_hub_are_told(hub: Hub, fault: str, step: str) -> None:
    hub.fault = fault
    assert refused().endswith(step)


def test_without_a_network_the_step_is_a_copy(hub: Hub) -> None:
    hub.shutdown()
    hub.server_close()
    assert refused().endswith("copy the files here, and name their directory.")


def test_a_download_that_breaks_off_goes_on(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.fault = "cut"
    assert "the download broke off; start again, and it goes on where it ended" in refused()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused()  # and nothing is read that has arrived
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    hub.fault = ""
    assert (locate("org/name")[0] / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


@pytest.mark.usefixtures("hub")
def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
    assert refused().endswith("No space left on device; set HF_HOME to another directory.")
