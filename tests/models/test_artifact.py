"""An artifact matches its manifest exactly, or is rejected with one sentence that names the fault."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swiftlet_models import artifact
from swiftlet_models.artifact import (
    CERTIFICATE,
    HEAD,
    MANIFEST,
    SIGNATURE,
    Artifact,
    ArtifactError,
    Decisions,
    Embedding,
    Fit,
    Labelling,
    Manifest,
    Reading,
    find_artifacts,
    open_artifact,
    seal,
)
from swiftlet_models.artifact.directory import AGAIN
from swiftlet_models.artifact.parsing import LATER
from tests.support.artifacts import certify, make_artifact

PARTS = {
    "tokenizer.json": b'{"model": {}}',
    "weights.safetensors": bytes(range(256)) * 3,
    "golden.npz": b"PK\x03\x04golden",
    "card.json": '{"score": 0.5, "by": "Müller"}'.encode(),
}
MAIN = Manifest(
    name="small-classifier",
    version="1.2.0",
    architecture="albert",
    task="classify",
    head="classification",
    precision="int8",
    max_tokens=128,
    vocab_size=211,
    width=2,
    labels=("négatif", "positif"),
    problem="single_label",
    tolerance=0.05,
    config={"hidden_size": 48, "hidden_act": "gelu_new"},
    source={"hub": "someone/something", "revision": "0123abc"},
)


DECISIONS: Any = {
    "temperature": 1.5,
    "predicates": {"The text is positive.": "positif"},
    "scores": {"How positive is it?": ["négatif", "positif"]},
}
FIT: Any = {"temperature": 2.0, "offset": -1.0, "threshold": 0.9}
EMBEDDING = {
    "pooling": "mean",
    "normalize": True,
    "dense": None,
    "prompts": {"query": "query: "},
    "default_prompt": "query",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sealed artifact."""
    directory = tmp_path / "model"
    directory.mkdir()
    for name, content in PARTS.items():
        (directory / name).write_bytes(content)
    seal(directory, MAIN)
    return directory


def error_message(path: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        open_artifact(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path.name}: ")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path.name}: ")


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest, which holds no checksum of itself."""
    document = json.loads((path / MANIFEST).read_text("utf-8"))
    change(document)
    (path / MANIFEST).write_text(json.dumps(document), "utf-8")


def test_open_artifact_returns_sealed_manifest(path: Path) -> None:
    opened = open_artifact(path)
    assert replace(opened.manifest, files={}) == MAIN
    assert {name: file.size for name, file in opened.manifest.files.items()} == {
        name: len(content) for name, content in PARTS.items()
    }
    assert opened.file("weights.safetensors").read_bytes() == PARTS["weights.safetensors"]
    assert opened.card() == {"score": 0.5, "by": "Müller"}


def test_seal_is_idempotent(path: Path) -> None:
    before = (path / MANIFEST).read_bytes()
    assert seal(path, open_artifact(path).manifest) == open_artifact(path)
    assert (path / MANIFEST).read_bytes() == before


def test_artifact_may_hold_fp32_weights(path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"^model: this artifact has no model\.safetensors\.$"):
        open_artifact(path).file("model.safetensors")
    (path / "model.safetensors").write_bytes(b"weights")
    assert seal(path, MAIN).file("model.safetensors").read_bytes() == b"weights"


def test_a_certificate_is_of_one_manifest(path: Path) -> None:
    assert open_artifact(path).certificate() is None
    document = certify(path)
    (path / SIGNATURE).write_bytes(b"any: its key is not known here")
    assert open_artifact(path).certificate() == document
    assert open_artifact(path).files == [*sorted(PARTS), CERTIFICATE, SIGNATURE, MANIFEST]

    edit(path, lambda manifest: manifest.update(labels=["positif", "négatif"]))
    assert error_message(path) == (
        "certificate.json is missing, damaged or of another artifact. Fetch the artifact again, or remove "
        "certificate.json and certificate.sig and run swiftlet certify."
    )
    assert not {CERTIFICATE, SIGNATURE} & {file.name for file in seal(path, MAIN).path.iterdir()}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"manifest": 1}', b"[" * 99, b"\xff", None])
def test_an_unreadable_certificate_is_refused(path: Path, content: bytes | None) -> None:
    certify(path)
    (path / SIGNATURE).touch()
    if content is None:
        (path / CERTIFICATE).unlink()
    else:
        (path / CERTIFICATE).write_bytes(content)
    assert error_message(path).startswith("certificate.json is missing, damaged or of another artifact.")


def test_a_certificate_is_a_small_file_of_the_artifact(path: Path) -> None:
    (path.parent / "elsewhere").write_text(json.dumps(certify(path)), "utf-8")
    (path / CERTIFICATE).unlink()
    (path / CERTIFICATE).symlink_to(path.parent / "elsewhere")
    assert error_message(path) == "certificate.json is not a regular file of 1048576 bytes at most."
    (path / CERTIFICATE).unlink()
    (path / CERTIFICATE).write_bytes(b" " * (artifact.MAX_MANIFEST_BYTES + 1))
    assert error_message(path) == "certificate.json is not a regular file of 1048576 bytes at most."


def test_file_rejects_unlisted_name(path: Path) -> None:
    for name in ("../model/card.json", "/etc/hostname", MANIFEST, ""):
        with pytest.raises(ArtifactError):
            open_artifact(path).file(name)


def test_find_artifacts_sorts_by_name(path: Path) -> None:
    shutil.copytree(path, path.parent / "a-copy")
    (path.parent / "empty").mkdir()
    assert list(find_artifacts(path.parent)) == [path.parent / "a-copy", path]


# Files


@pytest.mark.parametrize("name", PARTS)
def test_open_artifact_rejects_missing_file(path: Path, name: str) -> None:
    (path / name).unlink()
    assert error_message(path) == f"{name} is missing."


@pytest.mark.parametrize("name", PARTS)
def test_open_artifact_rejects_altered_file(path: Path, name: str) -> None:
    content = bytearray(PARTS[name])
    content[-1] ^= 1
    (path / name).write_bytes(content)
    assert error_message(path) == f"{name} was altered: its SHA-256 is not the one listed. {AGAIN}"


@pytest.mark.parametrize("name", PARTS)
def test_open_artifact_rejects_truncated_file(path: Path, name: str) -> None:
    (path / name).write_bytes(PARTS[name][:-1])
    assert error_message(path) == f"{name} has {len(PARTS[name]) - 1} bytes, not {len(PARTS[name])}. {AGAIN}"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "weights.safetensors.data", ".hidden", "model.bin", "MANIFEST.json"]
)
def test_open_artifact_rejects_extra_file(path: Path, name: str) -> None:
    (path / name).write_bytes(b"more")
    assert error_message(path) == f"{name} is not listed in manifest.json."


def test_open_artifact_rejects_extra_directory(path: Path) -> None:
    (path / "more").mkdir()
    assert error_message(path) == "more is not listed in manifest.json."


@pytest.mark.parametrize("name", PARTS)
def test_open_artifact_rejects_symbolic_link(path: Path, name: str) -> None:
    """The target of a link could be changed after the verification."""
    (path / name).rename(path.parent / name)
    (path / name).symlink_to(path.parent / name)
    assert error_message(path) == f"{name} is not a regular file."


def replace_by_directory(file: Path) -> None:
    file.mkdir()


def replace_by_pipe(file: Path) -> None:
    os.mkfifo(file)  # opening a pipe would block


def replace_by_broken_link(file: Path) -> None:
    file.symlink_to("nowhere")


@pytest.mark.parametrize("make", [replace_by_directory, replace_by_pipe, replace_by_broken_link])
def test_open_artifact_rejects_irregular_file(path: Path, make: Callable[[Path], None]) -> None:
    (path / "card.json").unlink()
    make(path / "card.json")
    assert error_message(path) == "card.json is not a regular file."
    with pytest.raises(ArtifactError, match=r"^model: card\.json is not a regular file\.$"):
        seal(path, MAIN)
    (path / MANIFEST).unlink(missing_ok=True)
    make(path / MANIFEST)
    assert error_message(path) == "manifest.json is missing."


def test_open_artifact_rejects_file_of_other_artifact(path: Path) -> None:
    other = path.parent / "other"
    shutil.copytree(path, other)
    (other / "weights.safetensors").write_bytes(PARTS["weights.safetensors"][::-1])
    seal(other, MAIN)
    shutil.copyfile(other / "weights.safetensors", path / "weights.safetensors")
    assert error_message(path) == f"weights.safetensors was altered: its SHA-256 is not the one listed. {AGAIN}"


@pytest.mark.parametrize("name", PARTS)
def test_seal_rejects_missing_and_unknown_files(path: Path, name: str) -> None:
    (path / name).rename(path / "other.bin")
    with pytest.raises(ArtifactError, match=f"the list of files lacks {name}"):
        seal(path, MAIN)
    (path / name).write_bytes(PARTS[name])
    with pytest.raises(ArtifactError, match=r"the list of files has the unknown name 'other\.bin'"):
        seal(path, MAIN)


def test_seal_rejects_empty_file(path: Path) -> None:
    (path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"the field 'files/weights\.safetensors' has a wrong value"):
        seal(path, MAIN)


def test_open_artifact_rejects_directory_without_manifest(tmp_path: Path) -> None:
    assert error_message(tmp_path / "gone") == "there is no such directory."
    assert error_message(tmp_path) == "manifest.json is missing."
    (tmp_path / "file").write_bytes(b"")
    assert error_message(tmp_path / "file") == "there is no such directory."


# Manifests


def settings_of(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update(changes)


def files_with(name: str, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["files"].setdefault(name, {"size": 1, "sha256": "0" * 64}).update(changes)


READING = {"truncation_side": "left", "special_tokens": ["[E1]"]}
WRONG_VALUES: dict[str, list[Any]] = {
    "name": ["", "Upper", "a b", "../x", "a/b", ".hidden", "a" * 65, "name\n", 3, None, ["a"]],
    "version": [1, None, ["1"]],
    "architecture": [None, 3, {}],
    "task": ["", "Classify", "fill_mask", "../x", "a/b", "a" * 65, "qa\n", None, ["classify"], {}],
    "head": ["", "Token", "classify", "pooler", None, ["token"], {}],
    "precision": ["fp16", None, 8, {}],
    "max_tokens": [0, -1, 1.5, 128.0, True, "128", None, [128]],
    "vocab_size": [0, -1, 1.5, True, "211", None],
    "width": [0, -2, 2.0, True, "2", None],
    "labels": [None, "ab", ["a"], ["a", "b", "c"], ["a", 2], [None, None], {"0": "a", "1": "b"}],
    "problem": ["ranking", 1, ["single_label"], {}],
    "tolerance": [0, -0.1, True, "0.1", None, [], 10**400],
    "config": [None, [], "x", 3],
    "source": [None, [], "x", 3],
    "files": [None, [], "x", [{"name": "weights.safetensors"}]],
    "embedding": ["mean", [], {}, {"pooling": "mean"}, EMBEDDING | {"more": 1}],
    "reading": [1.5, [], {}, "left", {"truncation_side": "left"}, READING | {"more": 1}],
    "labelling": [1.5, [], {}, "spans", {"scores": "spans"}],
    "languages": [None, "en", [1], ["English"], ["EN"], ["en_GB"], ["multilingual"], [""]],
    "decisions": [1.5, [], {}, {"temperature": 1.5}, DECISIONS | {"more": 1}],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values])
def test_manifest_rejects_wrong_value(path: Path, key: str, value: Any) -> None:
    edit(path, settings_of(**{key: value}))
    assert error_message(path) == f"manifest.json: the field {key!r} has a wrong value."


def test_wrong_values_cover_all_fields(path: Path) -> None:
    assert set(WRONG_VALUES) | {"format"} == set(json.loads((path / MANIFEST).read_text()))


@pytest.mark.parametrize("key", [*(key for key in WRONG_VALUES if key not in LATER), "format"])
def test_manifest_rejects_missing_field(path: Path, key: str) -> None:
    edit(path, lambda document: document.pop(key))
    expected = "the format is not 1 or 2." if key == "format" else f"the field {key!r} is missing."
    assert error_message(path) == f"manifest.json: {expected}"


def test_manifest_of_an_older_version_lacks_later_fields(path: Path) -> None:
    edit(path, lambda document: [document.pop(key) for key in LATER])
    manifest = open_artifact(path).manifest
    assert (manifest.embedding, manifest.decisions, manifest.languages) == (None, None, ())
    assert manifest.reading == Reading("right", ())


@pytest.mark.parametrize(
    ("key", "value"),
    [("truncation_side", side) for side in (None, "Left", "middle", ["left"])]
    + [("special_tokens", tokens) for tokens in (None, "[E1]", [1], [""], {"[E1]": 1})],
)
def test_manifest_rejects_wrong_value_of_reading(path: Path, key: str, value: Any) -> None:
    edit(path, settings_of(reading=READING | {key: value}))
    assert error_message(path) == f"manifest.json: the field 'reading/{key}' has a wrong value."


def test_manifest_has_reading(path: Path) -> None:
    edit(path, settings_of(reading=READING))
    assert open_artifact(path).manifest.reading == Reading("left", ("[E1]",))
    edit(path, settings_of(reading=None))
    assert open_artifact(path).manifest.reading == Reading()


def test_manifest_has_labelling_with_a_head_only(path: Path) -> None:
    labelling = Labelling("spans", "<<ENT>>", "<<SEP>>", labels=("person",))
    described = replace(MAIN, head="embedding", embedding=Embedding("cls"), labelling=labelling)
    with pytest.raises(ArtifactError, match="labelling"):
        seal(path, described)
    (path / HEAD).write_bytes(b"parameters")
    assert seal(path, described).manifest.labelling == labelling
    wrong = {
        "scores": [None, "tokens", []],
        "marker": ["", 1],
        "separator": [None],
        "label_rows": ["last"],
        "word_rows": [None],
        "max_words": [0, 1.5, True, 1 << 30],
        "max_width": [-1],
        "labels": [None, "person", [" "], [1]],
        "labels_first": [1],
        "reads_from_separator": [None],
        "scorer": ["cosine"],
        "scale": ["1", True, 10**400],
        "encoder": [1, {}, []],
    }
    assert wrong.keys() == asdict(labelling).keys()
    for key, values in wrong.items():
        for value in values:
            edit(path, settings_of(labelling=asdict(labelling) | {key: value}))
            assert error_message(path) == f"manifest.json: the field 'labelling/{key}' has a wrong value."
    edit(path, settings_of(labelling=None))
    assert error_message(path) == "manifest.json: the field 'labelling' has a wrong value."


def test_manifest_has_languages(path: Path) -> None:
    edit(path, settings_of(languages=["en", "zh-Hant", "pt-BR"]))
    assert open_artifact(path).manifest.languages == ("en", "zh-Hant", "pt-BR")


def test_manifest_rejects_unknown_field(path: Path) -> None:
    edit(path, settings_of(trust_remote_code=True))
    assert error_message(path) == "manifest.json: the field 'trust_remote_code' is unknown."


def test_first_format_has_a_graph(path: Path) -> None:
    (path / "weights.safetensors").rename(path / "model.onnx")
    artifact = seal(path, MAIN)

    assert artifact.manifest.format == 1
    assert artifact.weights == path / "model.onnx"
    edit(path, settings_of(format=2))
    assert error_message(path) == "manifest.json: the list of files lacks weights.safetensors."


@pytest.mark.parametrize("value", [0, 3, "1", 1.0, True, None, [1], "x" * 100_000])
def test_manifest_rejects_other_format(path: Path, value: Any) -> None:
    """The format is checked first, because another format may have other fields."""
    edit(path, lambda document: (document.clear(), document.update(format=value)))
    assert error_message(path) == "manifest.json: the format is not 1 or 2."


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("pooling", value) for value in ("first", None, ["mean"], {})),
        *(("normalize", value) for value in (1, None, "true")),
        *(("dense", value) for value in ("selu", False, {})),
        *(("prompts", value) for value in (None, [], {"query": 1})),
        *(("default_prompt", value) for value in ("document", 1, {})),
    ],
)
def test_manifest_rejects_wrong_value_of_an_embedding(path: Path, key: str, value: Any) -> None:
    edit(path, settings_of(head="embedding", embedding=EMBEDDING | {key: value}))
    assert error_message(path) == f"manifest.json: the field 'embedding/{key}' has a wrong value."


def test_manifest_has_an_embedding_for_that_head_only(path: Path) -> None:
    wrong = "manifest.json: the field 'embedding' has a wrong value."
    edit(path, settings_of(head="embedding"))
    assert error_message(path) == wrong
    edit(path, settings_of(embedding=EMBEDDING))
    assert open_artifact(path).manifest.embedding == Embedding("mean", True, None, {"query": "query: "}, "query")
    edit(path, settings_of(head="token"))
    assert error_message(path) == wrong


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("temperature", value) for value in (0, -1.0, True, "1", None, 10**400)),
        *(("predicates", value) for value in (None, [], {"Good?": "good"}, {"Good?": 1}, {"Good?": []})),
        *(("scores", value) for value in (None, [], {"How?": "ab"}, {"How?": ["positif"]}, {"How?": ["positif"] * 2})),
        *(("fits", value) for value in (None, [], {"other": FIT}, {"choice": {}}, {"choice": FIT | {"more": 1}})),
        *(("fits", {"choice": FIT | {"temperature": value}}) for value in (0, "1", 10**400)),
        *(("fits", {"choice": FIT | {"offset": value}}) for value in (None, True, -(10**400))),
        *(("fits", {"choice": FIT | {"threshold": value}}) for value in (-0.1, 1.1, 10**400)),
    ],
)
def test_manifest_rejects_wrong_value_of_decisions(path: Path, key: str, value: Any) -> None:
    edit(path, settings_of(decisions=DECISIONS | {key: value}))
    assert error_message(path) == f"manifest.json: the field 'decisions/{key}' has a wrong value."


def test_manifest_has_decisions(path: Path) -> None:
    edit(path, settings_of(decisions=DECISIONS))
    decisions = open_artifact(path).manifest.decisions
    assert decisions == Decisions(**DECISIONS)
    assert decisions.fit("choice") == Fit(1.5)
    edit(path, settings_of(decisions=DECISIONS | {"fits": {"predicate": FIT}}))
    decisions = open_artifact(path).manifest.decisions
    assert decisions is not None
    assert (decisions.fit("predicate"), decisions.fit("choice")) == (Fit(**FIT), Fit(1.5))


def test_manifest_without_labels_has_no_problem(path: Path) -> None:
    edit(path, settings_of(labels=[]))
    assert error_message(path) == "manifest.json: the field 'problem' has a wrong value."
    edit(path, settings_of(problem=None))
    assert open_artifact(path).manifest.labels == ()


def test_manifest_accepts_any_task_name(path: Path) -> None:
    """An unknown task is rejected when the model is loaded."""
    edit(path, settings_of(task="translate"))
    assert open_artifact(path).manifest.task == "translate"


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 0},
        {"size": -1},
        {"size": True},
        {"size": 13.0},
        {"size": "13"},
        {"size": None},
        {"sha256": ""},
        {"sha256": "0" * 63},
        {"sha256": "0" * 64 + "\n"},
        {"sha256": "G" * 64},
        {"sha256": "A" * 64},
        {"sha256": "٠" * 64},
        {"sha256": None},
        {"sha256": 0},
        {"md5": "0"},
    ],
)
def test_manifest_rejects_malformed_file_entry(path: Path, changes: dict[str, Any]) -> None:
    edit(path, files_with("tokenizer.json", **changes))
    assert error_message(path) == "manifest.json: the field 'files/tokenizer.json' has a wrong value."


@pytest.mark.parametrize("entry", [None, [], "x", 3])
def test_manifest_rejects_file_entry_that_is_no_object(path: Path, entry: Any) -> None:
    edit(path, lambda document: document["files"].update({"tokenizer.json": entry}))
    assert error_message(path) == "manifest.json: the field 'files/tokenizer.json' has a wrong value."


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/hostname",
        "a/b",
        ".",
        "..",
        "",
        "manifest.json",
        "weights.safetensors\u0000",
        "./card.json",
        "pytorch_model.bin",
    ],
)
def test_manifest_rejects_unknown_file_name(path: Path, name: str) -> None:
    """The name is checked before the file is opened, so no name leads out of the directory."""
    edit(path, files_with(name))
    assert error_message(path) == f"manifest.json: the list of files has the unknown name {name!r}."


@pytest.mark.parametrize("name", PARTS)
def test_manifest_rejects_incomplete_file_list(path: Path, name: str) -> None:
    edit(path, lambda document: document["files"].pop(name))
    assert error_message(path) == f"manifest.json: the list of files lacks {name}."


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"format": 1, "format": 1}',
        b'{"format": 1, "config": {"a": 1, "a": 2}}',
        b'{"tolerance": NaN}',
        b'{"tolerance": Infinity}',
        b'{"config": {"layer_norm_eps": -Infinity}}',
        b'{"format": ' + b"1" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda content: content[:20].decode("latin-1"),
)
def test_manifest_rejects_invalid_json(path: Path, content: bytes) -> None:
    (path / MANIFEST).write_bytes(content)
    assert error_message(path) == "manifest.json is not valid JSON."


@pytest.mark.parametrize("content", [b"[]", b"null", b'"x"', b"1"])
def test_manifest_rejects_other_json_types(path: Path, content: bytes) -> None:
    (path / MANIFEST).write_bytes(content)
    assert error_message(path) == "manifest.json: the document is not an object."


def test_manifest_rejects_huge_file_without_reading_it(path: Path) -> None:
    with (path / MANIFEST).open("r+b") as stream:
        stream.truncate(1 << 40)  # sparse: takes no disk space, but would take memory
    assert error_message(path) == f"manifest.json is larger than {artifact.MAX_MANIFEST_BYTES} bytes."


# Mutations


def mutated(content: bytes, position: int, value: int, truncate: bool) -> bytes:
    position %= len(content)
    return content[:position] if truncate else content[:position] + bytes([value]) + content[position + 1 :]


MUTATIONS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@MUTATIONS
@given(
    name=st.sampled_from(sorted(PARTS)),
    position=st.integers(0, 1 << 16),
    value=st.integers(0, 255),
    truncate=st.booleans(),
)
def test_open_artifact_detects_any_changed_byte(
    path: Path, name: str, position: int, value: int, truncate: bool
) -> None:
    content = mutated(PARTS[name], position, value, truncate)
    (path / name).write_bytes(content)
    try:
        if content == PARTS[name]:
            open_artifact(path)
        else:
            assert error_message(path).startswith(f"{name} ")
    finally:
        (path / name).write_bytes(PARTS[name])


@MUTATIONS
@given(position=st.integers(0, 1 << 16), value=st.integers(0, 255), truncate=st.booleans())
def test_changed_manifest_is_rejected_or_lists_same_files(
    path: Path, position: int, value: int, truncate: bool
) -> None:
    """A manifest has checksums of the files, and no checksum of itself.

    Invalid JSON, invalid values, and changed sizes, checksums and file names are rejected. Another valid value, such as
    a different label, is not detected.
    """
    original = (path / MANIFEST).read_bytes()
    before = open_artifact(path)
    (path / MANIFEST).write_bytes(mutated(original, position, value, truncate))
    try:
        after = open_artifact(path)
    except ArtifactError as error:
        assert str(error).startswith("model: ")  # noqa: PT017  # either outcome is right
    else:
        assert after.manifest.files == before.manifest.files
    finally:
        (path / MANIFEST).write_bytes(original)


@pytest.mark.parametrize("name", PARTS)
def test_open_artifact_rejects_changed_checksum_or_size(path: Path, name: str) -> None:
    edit(path, files_with(name, sha256="0" * 64))
    assert error_message(path) == f"{name} was altered: its SHA-256 is not the one listed. {AGAIN}"
    edit(path, files_with(name, size=999))
    assert error_message(path) == f"{name} has {len(PARTS[name])} bytes, not 999. {AGAIN}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("version", "9"), ("labels", ["positif", "négatif"]), ("tolerance", 1e9), ("source", {}), ("max_tokens", 512)],
)
def test_manifest_accepts_other_valid_values(path: Path, key: str, value: Any) -> None:
    edit(path, settings_of(**{key: value}))
    opened: Artifact = open_artifact(path)
    assert getattr(opened.manifest, key) == (tuple(value) if key == "labels" else value)


@MUTATIONS
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WRONG_VALUES, "format", "x"]), inner)
        ),
        max_leaves=20,
    )
)
def test_manifest_rejects_arbitrary_json(path: Path, document: Any) -> None:
    original = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_text(json.dumps(document), "utf-8")
    try:
        assert error_message(path).startswith("manifest.json")
    finally:
        (path / MANIFEST).write_bytes(original)


@MUTATIONS
@given(
    key=st.sampled_from(sorted(WRONG_VALUES)),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ),
)
def test_manifest_rejects_or_keeps_arbitrary_value(path: Path, key: str, value: Any) -> None:
    original = (path / MANIFEST).read_bytes()
    edit(path, settings_of(**{key: value}))
    try:
        opened = open_artifact(path)
    except ArtifactError as error:
        assert str(error).startswith("model: manifest.json")  # noqa: PT017  # either outcome is right
    else:
        kept = getattr(opened.manifest, key)
        assert (list(kept) if isinstance(kept, tuple) else kept) == value or (key, value) == ("reading", None)
    finally:
        (path / MANIFEST).write_bytes(original)


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "{", '{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', '{"a": ' * 40 + "1" + "}" * 40]
)
def test_open_artifact_rejects_a_card_that_is_no_object(path: Path, content: str) -> None:
    (path / "card.json").write_text(content or " ", "utf-8")

    with pytest.raises(ArtifactError, match=r"card\.json is not a valid JSON object"):
        seal(path, MAIN)


@pytest.mark.parametrize("name", ["tokenizer.json", "golden.npz", "card.json"])
def test_open_artifact_rejects_a_file_that_is_too_large_before_it_reads_it(path: Path, name: str) -> None:
    with (path / name).open("r+b") as file:
        file.truncate(1 << 27)  # without taking space
    edit(path, lambda document: document["files"][name].update(size=1 << 27))

    assert error_message(path) == f"manifest.json: the field 'files/{name}' has a wrong value."


@pytest.mark.parametrize("name", ["max_tokens", "vocab_size", "width"])
@pytest.mark.parametrize("value", [(1 << 24) + 1, 10**400, 1.0, True, "1", [1], None])
def test_manifest_rejects_sizes_that_no_network_has(path: Path, name: str, value: object) -> None:
    edit(path, lambda document: document.update({name: value, "labels": [], "problem": None}))

    assert error_message(path) == f"manifest.json: the field '{name}' has a wrong value."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Imported from /home/me/secret/model.", "Imported from model."),
        ("runs (/data/secret/mine) and ~/secret/m", "runs (mine) and m"),
        (r"C:\Users\secret\m", "m"),
        ("../secret/m, --data=/secret/dev.tsv", "m, --data=dev.tsv"),
        ("/secret", "secret"),
        ("corpora/wiki.txt.xz of https://example.org/a/b, 3/4 and/or 1 / 2", None),
    ],
)
def test_public_card_holds_no_paths(tmp_path, text, shown):
    artifact = make_artifact(tmp_path, "classify")
    seal(artifact.path, artifact.manifest, {"summary": text, "finetuning": {text: [text, 1, None]}})
    shown = text if shown is None else shown

    assert open_artifact(artifact.path).public_card() == {"summary": shown, "finetuning": {shown: [shown, 1, None]}}


def test_public_card_of_an_earlier_import_names_the_directory_only(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    manifest = replace(artifact.manifest, source={"directory": "model"})
    sealed = seal(artifact.path, manifest, {"summary": "Imported from private/folder/model."})

    assert sealed.public_card() == {"summary": "Imported from model."}
