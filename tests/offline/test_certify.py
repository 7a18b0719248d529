"""Certificates: what imports and `swiftlet certify` compare and write, and signatures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from swiftlet_models.artifact import (
    CARD,
    CERTIFICATE,
    MANIFEST,
    SIGNATURE,
    WEIGHTS,
    Artifact,
    ArtifactError,
    open_artifact,
)
from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import open_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.offline import certificate
from swiftlet_serve.offline.certificate import comparisons
from swiftlet_serve.offline.evaluate import Measure
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.repository.cache import Cache
from swiftlet_serve.repository.store import open_store, push
from swiftlet_serve.settings import Settings
from swiftlet_serve.workers.process_executor import ProcessExecutor
from swiftlet_serve.workers.signature import check_signature, open_signed, signing_key
from swiftlet_serve.workers.thread_executor import ThreadExecutor
from tests.support.artifacts import VOCABULARY
from tests.support.checkpoints import SMALL, reference
from tests.support.markdown import first_column, text_of
from tests.support.paths import ROOT
from tests.support.sentence_checkpoints import save_encoder

LABELLED = "label,text\n" + "".join(f"{number % 3},text {number}\n" for number in range(12))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT classifier in the format of transformers."""
    directory = tmp_path_factory.mktemp("checkpoints") / "Tiny"
    reference(SMALL["bert"], "classify", num_hidden_layers=1).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
    (directory / "pytorch_model.bin").write_bytes(b"another form of the weights, which is not read")
    return directory


@pytest.fixture(scope="module")
def imported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make(checkpoint, tmp_path_factory.mktemp("out"))


@pytest.fixture
def artifact(imported: Artifact, tmp_path: Path) -> Artifact:
    """A copy of the imported model, which a test may change."""
    return open_artifact(Path(shutil.copytree(imported.path, tmp_path / "it" / imported.path.name)))


def make(checkpoint: Path, out: Path, **options: Any) -> Artifact:
    options |= {"accept_tokenizer": True, "report": lambda _: None}
    return import_checkpoint(str(checkpoint), "classify", out, max_loss=100, **options)[0]


def certify(artifact: Artifact, *words: object) -> dict[str, Any]:
    """Runs the command, which must succeed, and returns the certificate."""
    done = CliRunner().invoke(main, ["certify", str(artifact.path), *map(str, words)])
    assert done.exit_code == 0, done.output
    return open_artifact(artifact.path).certificate() or {}


def refusal(*words: object) -> str:
    """Runs a command, which must end with one sentence."""
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    return done.stderr.splitlines()[-1].removeprefix("Error: ").removeprefix("failed  ")


def test_an_import_certifies_what_it_compared(checkpoint: Path, imported: Artifact) -> None:
    document, card = imported.certificate(), imported.card()
    assert document

    assert document["manifest"] == hashlib.sha256((imported.path / MANIFEST).read_bytes()).hexdigest()
    assert document["source"] == {
        "directory": "Tiny",
        "files": {
            name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
            for name in ("config.json", "model.safetensors", "vocab.txt")
        },
    }
    assert document["precision"] == "int8"
    assert document["weights_bytes"] == (imported.path / WEIGHTS).stat().st_size
    assert document["latency"]["onnx_cpu"]["milliseconds"] == card["latency"]["milliseconds"]
    assert document["engine"] == card["fidelity"]["engine"]
    assert document["machine"]["processor"] in card["latency"]["machine"]
    (built_in,) = comparisons(imported)
    assert built_in.n == card["fidelity"]["n"] > 50
    assert built_in.agreement["probability"].value == 100 * card["fidelity"]["mean"]
    assert built_in.agreement["answers"].n == built_in.n
    assert str(checkpoint) not in json.dumps(document)
    documented = first_column(text_of(ROOT / "docs/reference/artifact.md"), "Key", "Content")
    assert set(documented) == document.keys()


def test_a_file_with_labels_gives_scores(checkpoint: Path, artifact: Artifact, tmp_path: Path) -> None:
    data = tmp_path / "dev.csv"
    data.write_text(LABELLED, "utf-8")
    known, other = certify(artifact, "--data", data, "--source", checkpoint, "--limit", 10)["comparisons"]

    assert known["texts"] == certificate.BUILT_IN
    assert other["texts"] == "dev.csv"
    assert other["sha256"] == hashlib.sha256(LABELLED.encode()).hexdigest()
    assert other["n"] == other["agreement"]["answers"]["n"] == 10
    assert {name: scores["accuracy"]["n"] for name, scores in other["scores"].items()} == {"fp32": 10, "int8": 10}
    fp32, int8 = (other["scores"][name]["accuracy"]["value"] for name in ("fp32", "int8"))
    assert other["loss"]["value"] == fp32 - int8


@pytest.mark.exhaustive
def test_an_import_with_a_file_of_labels_certifies_its_scores(checkpoint: Path, tmp_path: Path) -> None:
    data = tmp_path / "dev.csv"
    data.write_text(LABELLED, "utf-8")
    imported = make(checkpoint, tmp_path, measure=Measure(data, limit=10))
    assert [known.texts for known in comparisons(imported)] == [certificate.BUILT_IN, "dev.csv"]
    exact = make(checkpoint, tmp_path, measure=Measure(data, limit=10), precision="fp32")
    (only,) = comparisons(exact)
    assert (only.agreement, only.loss, only.scores.keys()) == ({}, None, {"fp32"})


def test_a_file_without_labels_gives_agreement(checkpoint: Path, tmp_path: Path) -> None:
    """The artifact holds its weights in fp32, so it needs no checkpoint. A calibration has removed its certificate."""
    artifact = make(checkpoint, tmp_path / "out", keep_fp32=True)
    (artifact.path / CERTIFICATE).unlink()
    data = tmp_path / "texts.csv"
    data.write_text("text\na\nb\n", "utf-8")
    (only,) = certify(artifact, "--data", data)["comparisons"]
    data.write_text("text\nc\n", "utf-8")
    again, built_in = certify(artifact, "--data", data)["comparisons"], certify(artifact)["comparisons"]

    assert (only["texts"], only["n"], only["scores"], only["loss"]) == ("texts.csv", 2, {}, None)
    assert only["agreement"].keys() == {"probability", "answers"}
    assert [(known["texts"], known["n"]) for known in again] == [("texts.csv", 1)]
    assert [known["texts"] for known in built_in] == ["texts.csv", certificate.BUILT_IN]
    assert artifact.card() == json.loads((artifact.path / CARD).read_text("utf-8"))


def test_weights_of_another_network_are_refused(artifact: Artifact, tmp_path: Path) -> None:
    other = tmp_path / "Other"
    reference(SMALL["bert"], "classify", num_hidden_layers=2).save_pretrained(other)
    (other / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
    before = artifact.certificate()

    assert refusal("certify", artifact.path, "--source", other).startswith(
        "The weights in fp32 do not give the golden answers of tiny, so it was made of others. Name "
    )
    assert refusal("certify", artifact.path).endswith(
        f"Name the checkpoint that it was made of: swiftlet certify {artifact.path} --source DIRECTORY"
    )
    assert open_artifact(artifact.path).certificate() == before


def test_a_wrong_label_is_not_taken_for_none(checkpoint: Path, artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("label,text\nx,a\n", "utf-8")

    assert refusal("certify", artifact.path, "--data", tmp_path / "bad.csv", "--source", checkpoint).startswith(
        "bad.csv: line 2: its label is none of "
    )


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path / "own", ed25519.Ed25519PrivateKey.generate())


def write_keys(directory: Path, key: Any, encryption: Any = None) -> tuple[Path, Path]:
    """Writes a private and a public key, and returns their files."""
    directory.mkdir()
    private, public = directory / "key.pem", directory / "public.pem"
    private.write_bytes(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, encryption or pem.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_an_embedding_model_is_certified_in_each_of_its_tasks(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    options = {"accept_tokenizer": True, "report": lambda _: None, "keep_fp32": True}
    artifact, _ = import_checkpoint(str(tmp_path / "model"), "embed", tmp_path / "out", max_loss=100, **options)
    data = tmp_path / "intents.tsv"
    data.write_text("label\ttext\n" + "bread\tShe sells it.\nfilm\tIt was warm.\n" * 3, "utf-8")

    certify(artifact, "--task", "zero-shot", "--data", data)
    document = certify(artifact, "--task", "zero-shot", "--data", data)
    told = [(known["texts"], known["task"]) for known in document["comparisons"]]
    assert told == [("built-in texts", None), ("intents.tsv", "zero-shot")]
    assert document["comparisons"][1]["n"] == 6
    assert refusal("certify", artifact.path, "--task", "qa") == (
        "The model model is for the task embed or rerank or zero-shot, not qa."
    )


def test_a_signature_is_checked(artifact: Artifact, keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    assert refusal("check", artifact.path, "--public-key", public) == (
        f"tiny is not signed. Sign it with swiftlet certify {artifact.path} --sign-key KEY."
    )
    before = (artifact.path / CERTIFICATE).read_bytes()
    certify(artifact, "--sign-key", private)
    assert (artifact.path / CERTIFICATE).read_bytes() == before

    done = CliRunner().invoke(main, ["check", str(artifact.path), "--public-key", str(public)])
    assert done.exit_code == 0, done.output
    assert f"signed    by the owner of {public}" in done.output
    assert "certified built-in texts, n = " in done.output

    _, others = write_keys(tmp_path / "others", ed25519.Ed25519PrivateKey.generate())
    unknown = f"tiny: the owner of {others} did not sign this certificate. Fetch the artifact again from its source"
    assert refusal("check", artifact.path, "--public-key", others).startswith(unknown)
    (artifact.path / CERTIFICATE).write_bytes(before.replace(b"int8", b"bf16"))
    for signature in (ed25519.Ed25519PrivateKey.generate().sign(before), b"", b"x" * 200):
        with pytest.raises(ArtifactError, match="did not sign this certificate"):
            check_signature(artifact.path, public)
        (artifact.path / SIGNATURE).write_bytes(signature)
    (artifact.path / CERTIFICATE).write_bytes(before)
    certificate._replace(artifact.path, CERTIFICATE, before)
    assert not (artifact.path / SIGNATURE).exists()
    (artifact.path / CERTIFICATE).rename(artifact.path / SIGNATURE)
    with pytest.raises(ArtifactError, match="tiny is not signed"):
        check_signature(artifact.path, public)


def test_a_server_with_a_signer_key_serves_signed_models_only(artifact: Artifact, keys: tuple[Path, Path]) -> None:
    private, public = keys
    settings = Settings(models=(str(artifact.path),), engine="echo", signer_key=public)
    for start in (LocalRuntime.load, LocalRuntime.begin):
        with pytest.raises(ArtifactError, match="tiny is not signed"):
            start(settings)
    certify(artifact, "--sign-key", private)
    asyncio.run(LocalRuntime.load(settings).close())
    with pytest.raises(SetupError, match="cannot be read: it is no public key in PEM"):
        LocalRuntime.load(settings.model_copy(update={"signer_key": private}))


def test_each_process_checks_the_signature(artifact: Artifact, keys: tuple[Path, Path]) -> None:
    """An artifact may be replaced before a process that was lost is started again, or a model is added."""
    private, public = keys
    certify(artifact, "--sign-key", private)

    def start() -> None:
        executor = ProcessExecutor("echo", [[artifact.path]], 1, spare=False, signer_key=public)
        executor.load()
        executor.abandon()

    start()
    assert open_signed(artifact.path, public).manifest == artifact.manifest
    (artifact.path / SIGNATURE).unlink()
    with pytest.raises(ArtifactError, match="tiny is not signed"):
        start()
    with pytest.raises(ArtifactError, match="tiny is not signed"):
        asyncio.run(ThreadExecutor({}, 1, "echo", public).add_model("tiny", artifact.path))
    with pytest.raises(ArtifactError, match="tiny is not signed"):
        open_model(artifact.path, "echo", signer_key=public)


def test_a_repository_with_a_signer_key_gives_signed_versions_only(
    artifact: Artifact, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = keys
    (tmp_path / "repository").mkdir()
    store = open_store(str(tmp_path / "repository"))
    cache = Cache(store, tmp_path / "copies", public)
    push(store, artifact)
    with pytest.raises(ArtifactError, match="is not signed"):
        cache.fetch("tiny", 1)
    assert not list((tmp_path / "copies").iterdir())
    certify(artifact, "--sign-key", private)
    push(store, artifact, 2)
    assert cache.fetch("tiny", 2).manifest == artifact.manifest
    with pytest.raises(SetupError, match="cannot be read: it is no public key in PEM"):
        Cache(store, tmp_path / "copies", private)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read: it is no private key in PEM. Make one with openssl genpkey -algorithm ed25519"),
        ("elliptic", "is not a private Ed25519 key. Make one with"),
        ("encrypted", "is encrypted. Decrypt it with openssl pkey -in "),
        ("public", "cannot be read: it is no private key in PEM"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_key_that_does_not_fit_is_refused(tmp_path: Path, content: bytes | str | None, message: str) -> None:
    file = tmp_path / "key.pem"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        key = ec.generate_private_key(ec.SECP256R1()) if content == "elliptic" else ed25519.Ed25519PrivateKey.generate()
        secret = pem.BestAvailableEncryption(b"word") if content == "encrypted" else None
        private, public = write_keys(tmp_path / "keys", key, secret)
        file = public if content == "public" else private
    with pytest.raises(SetupError, match=message):
        signing_key(file)


def test_a_certificate_of_another_form_is_refused(artifact: Artifact) -> None:
    document = artifact.certificate()
    (artifact.path / CERTIFICATE).write_text(json.dumps(document | {"comparisons": [{"texts": 1}]}), "utf-8")

    assert refusal("check", artifact.path).startswith("tiny: certificate.json has another form than this version")
