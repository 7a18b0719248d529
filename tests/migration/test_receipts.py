"""Receipts prove what a server answered, and `swiftlet replay` reproduces it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from swiftlet_models.artifact import MANIFEST
from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_serve.grpc.open_inference import SERVICE
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.endpoints.receipts import request_digest, verify
from swiftlet_serve.http.gate.credentials import Credentials
from swiftlet_serve.migration.grpc_endpoint import GrpcEndpoint
from swiftlet_serve.migration.request_log import Answered, entries
from swiftlet_serve.settings import Settings
from tests.migration.test_shadow import service
from tests.support import grpc_server
from tests.support.apps import make_runtime

TEXT = "서울의 봄 🎬 e\u0301"
BODY = {"inputs": TEXT, "parameters": {"top_k": 2}}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_key(tmp_path / "key.pem")


def write_key(path: Path) -> Path:
    private = ed25519.Ed25519PrivateKey.generate()
    pem, raw = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(private.private_bytes(pem, raw, serialization.NoEncryption()))
    public = private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


def public(path: Path) -> ed25519.Ed25519PublicKey:
    return serialization.load_pem_public_key(path.with_suffix(".pub").read_bytes())


def test_receipt_has_the_digests_of_an_answer(artifact_dir: Path, key: Path) -> None:
    runtime = make_runtime(artifact_dir, receipt_key=key)
    with TestClient(create_app(runtime)) as client:
        response = client.post("/classify", json=BODY)
        same = client.post("/classify", content=json.dumps(BODY, indent=3))
        bad = client.post("/classify", json={"inputs": 3})
        predicted = client.post("/predict", json={"inputs": TEXT})

    receipt = verify(response.headers["x-receipt"], public(key))
    manifest = (artifact_dir / "tiny-classify" / MANIFEST).read_bytes()
    assert receipt.manifest == hashlib.sha256(manifest).hexdigest()
    assert receipt.response == hashlib.sha256(response.content).hexdigest()
    assert (receipt.path, receipt.model, receipt.engine) == ("/classify", "tiny-classify", "echo")
    assert receipt.request == request_digest(json.dumps(BODY).encode())
    assert verify(same.headers["x-receipt"], public(key)) == receipt
    assert "x-receipt" not in bad.headers
    assert verify(predicted.headers["x-receipt"], public(key)).path == "/predict"
    payload = response.headers["x-receipt"].split(".")[1]
    assert TEXT not in urlsafe_b64decode(payload + "==").decode()


def test_receipt_of_another_key_or_content_is_refused(artifact_dir: Path, key: Path, tmp_path: Path) -> None:
    with TestClient(create_app(make_runtime(artifact_dir, receipt_key=key))) as client:
        receipt = client.post("/classify", json=BODY).headers["x-receipt"]
    head, payload, signature = receipt.split(".")
    other = public(write_key(tmp_path / "other.pem"))
    with pytest.raises(ValueError, match="not signed"):
        verify(receipt, other)
    for forged in (
        "",
        ".",
        "é..",
        f"{head}.{payload[:-4]}AAAA.{signature}",
        f"{head}.{payload}.",
        f"{payload}.{signature}",
    ):
        with pytest.raises(ValueError, match="not signed"):
            verify(forged, public(key))


def test_no_receipt_without_a_key(artifact_dir: Path) -> None:
    with TestClient(create_app(make_runtime(artifact_dir))) as client:
        assert "x-receipt" not in client.post("/classify", json=BODY).headers


@pytest.mark.parametrize("content", [None, b"", b"no key"])
def test_server_does_not_start_without_its_key(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SetupError, match="cannot be read"):
        Credentials.read(Settings(receipt_key=path))


def test_body_that_is_not_json_has_a_digest() -> None:
    for body in (b"", b"\xff", b"[" * 10_000, b'"\\ud800"', b"9" * 5000):
        assert request_digest(body) == hashlib.sha256(body).hexdigest()


def test_replay_reproduces_answers(artifact_dir: Path, key: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with TestClient(create_app(make_runtime(artifact_dir, receipt_key=key))) as client:

        def respond(path: str, body: object) -> tuple[int, bytes, str]:
            response = client.post(path, json=body)
            return response.status_code, response.content, response.headers.get("x-receipt", "")

        receipt = respond("/classify", BODY)[2]
        entry = {"path": "/classify", "body": BODY, "receipt": receipt}
        faults = {
            "is of another request": [entry | {"body": BODY | {"inputs": "other"}}, entry | {"path": "/predict"}],
            "is not signed with this key": [entry | {"receipt": receipt[:-9]}, {"path": "/classify", "body": BODY}],
        }
        lines = [entry, *(line for wrong in faults.values() for line in wrong)]
        with service(lambda body: respond("/classify", body)) as server:
            log.write_text("\n".join(map(json.dumps, lines)))
            arguments = ["replay", server.url, "--log", str(log), "--public-key", str(key.with_suffix(".pub"))]
            mixed = CliRunner().invoke(main, arguments)
            log.write_text(json.dumps(entry))
            valid = CliRunner().invoke(main, arguments)
        with service(lambda body: respond("/classify", {"inputs": "another"})) as server:
            arguments[1] = server.url
            changed = CliRunner().invoke(main, arguments)

    assert (valid.exit_code, mixed.exit_code, changed.exit_code) == (0, 1, 1)
    assert "1 of 1 answers are reproduced" in valid.output
    assert "1 of 5 answers are reproduced" in mixed.output
    assert all(mixed.output.count(fault) == 2 for fault in faults)
    assert "line 1: the answer differs (engine echo then, echo now)" in changed.output
    assert TEXT not in mixed.output + changed.output


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)


@pytest.fixture(scope="module")
def signing(artifact_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    key = write_key(tmp_path_factory.mktemp("keys") / "key.pem")
    with TestClient(create_app(make_runtime(artifact_dir, max_body_bytes=100_000, receipt_key=key))) as client:
        yield client, key


@settings(max_examples=25)
@given(
    st.lists(
        st.one_of(
            TEXTS.map(lambda text: {"task": "classify", "inputs": text}),
            TEXTS.map(lambda text: {"task": "qa", "inputs": {"question": text, "context": text}}),
            TEXTS.map(lambda text: {"task": "fill-mask", "inputs": f"{text} [MASK]", "details": True}),
            st.just({"task": "classify", "inputs": ""}),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_receipt_of_a_batch_has_the_digests_of_all_models_and_answers(signing, requests):
    client, key = signing
    body = {"requests": requests, "partial": True}
    response = client.post("/batch", json=body)
    assert response.status_code == 200
    answered = [one["task"] for one in requests if one["inputs"]]
    if not answered:
        assert "x-receipt" not in response.headers
        return
    receipt = verify(response.headers["x-receipt"], public(key))
    again = verify(client.post("/batch", json=body).headers["x-receipt"], public(key))
    assert receipt == again
    assert (receipt.path, receipt.request) == ("/batch", request_digest(json.dumps(body).encode()))
    assert receipt.model == ",".join(dict.fromkeys(f"tiny-{task}" for task in answered))
    assert receipt.response == hashlib.sha256(response.content).hexdigest()
    other = {"requests": [*requests, {"task": "classify", "inputs": "one more"}], "partial": True}
    changed = verify(client.post("/batch", json=other).headers["x-receipt"], public(key))
    assert changed.answer != receipt.answer
    if len(requests) == 1:
        task = answered[0]
        alone = client.post(f"/{task}", json={name: value for name, value in requests[0].items() if name != "task"})
        assert verify(alone.headers["x-receipt"], public(key)).manifest == receipt.manifest


async def test_receipt_of_a_call_is_replayed(artifact_dir: Path, key: Path, tmp_path: Path) -> None:
    runtime = make_runtime(artifact_dir, receipt_key=key, grpc_port=0)
    message = grpc_server.request("classify", {"text": [TEXT, "fine"]}).SerializeToString()
    path = f"/{SERVICE}/ModelInfer"
    async with grpc_server.serving(runtime) as (port, client):
        call = client.call("ModelInfer", message)
        response = await call
        receipt = dict(await call.trailing_metadata())["x-receipt"]
        error = await client.fail("ModelInfer", grpc_server.request("nobody", {"text": ["a"]}))
        entry = {"path": path, "message": b64encode(message).decode(), "receipt": receipt}
        wrong = [
            entry | {"message": b64encode(message + b"\x1a\x01a").decode()},
            entry | {"receipt": ""},
            {"path": path, "body": BODY, "receipt": receipt},
        ]
        arguments = ["replay", f"grpc://{port.address}", "--public-key", str(key.with_suffix(".pub")), "--log"]
        outputs = []
        for number, lines in enumerate(([entry, entry], wrong)):
            log = tmp_path / f"{number}.jsonl"
            log.write_text("\n".join(map(json.dumps, lines)))
            outputs.append(await asyncio.to_thread(CliRunner().invoke, main, [*arguments, str(log)]))

    known = verify(receipt, public(key))
    assert (known.path, known.model, known.request) == (path, "tiny-classify", hashlib.sha256(message).hexdigest())
    assert known.response == hashlib.sha256(response.SerializeToString(deterministic=True)).hexdigest()
    assert "x-receipt" not in dict(error.trailing_metadata())
    assert [output.exit_code for output in outputs] == [0, 1]
    assert "2 of 2 answers are reproduced" in outputs[0].output
    assert "0 of 3 answers are reproduced" in outputs[1].output
    assert TEXT not in outputs[1].output


@pytest.mark.parametrize("url", ["grpc://", "grpc://host", "grpcs://a@b:1", "grpc://host:1/path"])
def test_address_of_grpc_is_checked(url: str) -> None:
    with pytest.raises(SetupError, match="An address of gRPC"):
        GrpcEndpoint(url, "", 1)


@pytest.mark.parametrize("line", [{}, {"body": {}, "message": "AAAA"}, {"message": "A"}])
def test_line_has_a_body_or_a_message(tmp_path: Path, line: dict) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"path": "/a"} | line))
    with pytest.raises(SetupError, match="line 1: it is not a request"):
        list(entries(log, Answered))
