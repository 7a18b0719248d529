"""Models that read the labels of a request: GLiNER and GLiClass.

`goldens/write_labels.py` ran the packages on the same checkpoints.
"""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from swiftlet_models import trunks
from swiftlet_models.artifact import Artifact, ArtifactError
from swiftlet_models.artifact.parsing import parse
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.label_checkpoints import find_label_checkpoint
from swiftlet_models.label_reader import LabelledText, Words
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks._spans import Spans, select
from swiftlet_serve.types import Batch
from tests.goldens import labels
from tests.goldens.cases import HERE
from tests.support.drafts import answers, catch_drafts, task_of
from tests.support.label_checkpoints import write_gliclass, write_gliner
from tests.support.task_requests import rejection
from tests.support.tiers import first

GOLDEN = json.loads((HERE / "labels.json").read_text("utf-8"))
TEXT = labels.TEXTS[0]
NAMES = ["person", "place"]


def imported(path: Path) -> Draft:
    with pytest.MonkeyPatch.context() as monkeypatch:
        drafts = catch_drafts(monkeypatch)
        import_checkpoint(
            str(path), None, path.parent, name="m", precision="fp32", max_loss=0, accept_tokenizer=True, report=str
        )
    return drafts[0]


@pytest.fixture(scope="module")
def gliner(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    return imported(write_gliner(tmp_path_factory.mktemp("gliner")))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    return imported(write_gliner(tmp_path_factory.mktemp("second"), labels="bert"))


@pytest.fixture(scope="module")
def gliclass(tmp_path_factory: pytest.TempPathFactory) -> Draft:
    return imported(write_gliclass(tmp_path_factory.mktemp("gliclass")))


@pytest.mark.parametrize("name", labels.GLINER)
def test_entities_equal_gliner(name: str, tmp_path: Path) -> None:
    draft = imported(labels.GLINER[name](tmp_path / "checkpoint"))
    assert draft.manifest.task == "entities"
    for number, (text, expected) in enumerate(zip(labels.TEXTS, GOLDEN["gliner"][name], strict=True)):
        mode, names = labels.MODES[number % len(labels.MODES)], labels.LABELS[number % len(labels.LABELS)]
        found = answers(draft, text, labels=names, **mode)
        assert [[one["start"], one["end"], one["entity_group"]] for one in found] == [one[:3] for one in expected]
        np.testing.assert_allclose([one["score"] for one in found], [one[3] for one in expected], atol=2e-5)
        assert all(one["word"] == text[one["start"] : one["end"]] for one in found)


@pytest.mark.parametrize("name", labels.GLICLASS)
def test_scores_of_labels_equal_gliclass(name: str, tmp_path: Path) -> None:
    draft = imported(labels.GLICLASS[name](tmp_path / "checkpoint"))
    assert draft.manifest.task == "zero-shot"
    for number, (text, expected) in enumerate(zip(labels.TEXTS, GOLDEN["gliclass"][name], strict=True)):
        names = labels.LABELS[number % len(labels.LABELS)]
        if "[SEP]" in text:  # which the package reads as the end of the text
            continue
        for several, scores in zip((True, False), expected, strict=True):
            if len(names) > 1 or several:
                found = answers(draft, text, candidate_labels=names, multi_label=several)
                own = {one["label"]: one["score"] for one in found}
                np.testing.assert_allclose([own[label] for label in names], scores, atol=2e-5)


def rounded(path: Path, **settings: Any) -> Artifact:
    checkpoint = write_gliner(path / "checkpoint", **settings)
    return import_checkpoint(str(checkpoint), None, path, name="m", max_loss=0.5, accept_tokenizer=True, report=str)[0]


@pytest.fixture(scope="module")
def two_encoders(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return rounded(tmp_path_factory.mktemp("two"), labels="bert")


def test_int8_is_measured_in_the_terms_of_the_task(tmp_path: Path) -> None:
    check_int8(rounded(tmp_path, num_rnn_layers=0))


def test_int8_of_two_encoders_is_measured_together(two_encoders: Artifact) -> None:
    check_int8(two_encoders)


def check_int8(artifact: Artifact) -> None:
    """Also checks that a batch equals its rows."""
    assert artifact.manifest.precision == "int8"
    certificate = artifact.certificate()
    assert certificate is not None
    assert {*certificate["comparisons"][0]["agreement"]} == {"probability", "answers"}
    for latency in certificate["latency"].values():
        assert latency.get("label", {}).get("tokens") == (8 if artifact.of_labels else None)
    model = load_model(artifact.path, "native")
    request = model.task.Request.model_validate({"inputs": [*labels.TEXTS], "parameters": {"labels": NAMES}})
    encodings = model.task.encode(request)
    assert {encoding.head for encoding in encodings} == ({0, 1} if artifact.of_labels else {0})
    together = model.engine.run(Batch.of(encodings))
    for encoding, row in zip(encodings, together, strict=True):
        (alone,) = model.engine.run(Batch.of([encoding]))
        assert np.array_equal(alone, row)
    model.engine.close()


@pytest.mark.parametrize("engine", first(("onnx_cpu", "torch"), "onnx_cpu"))
def test_other_engines_run_two_encoders(two_encoders: Artifact, engine: str) -> None:
    found = []
    for name in ("native", engine):
        model = load_model(two_encoders.path, name)
        (response,) = respond(model, [{"inputs": TEXT, "parameters": {"labels": NAMES, "threshold": 0.3}}])
        found.append([(one["start"], one["end"], one["entity_group"]) for one in response])
    assert found[0] == found[1] != []


def test_labels_are_encoded_once_for_all_requests(two_encoders: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LocalRuntime.start(Settings(models=(str(two_encoders.path),), engine="native", cores=1))
    heads: list[int] = []
    run = runtime.dispatcher.executor.run

    def spy(model: str, encodings: Any, timeout_s: float) -> Any:
        heads.extend(one.head for one in encodings)
        return run(model, encodings, timeout_s)

    monkeypatch.setattr(runtime.dispatcher.executor, "run", spy)
    several = {"inputs": [TEXT, "Bern"], "parameters": {"labels": NAMES, "threshold": 0.3}}
    with TestClient(create_app(runtime)) as client:
        whole = client.post("/entities", json=several)
        assert whole.status_code == 200, whole.text
        assert sorted(heads) == [0, 0, 1, 1]
        partial = client.post("/entities", json=several | {"partial": True})
        assert (partial.json(), heads[4:]) == (whole.json(), [0, 0])
        reversed_ = client.post("/entities", json={"inputs": TEXT, "parameters": {"labels": [*NAMES[::-1], "day"]}})
        assert reversed_.status_code == 200
        assert sorted(heads[6:]) == [0, 1]
        many = {"inputs": ["Bern"] * 40, "parameters": {"labels": [f"name {number}" for number in range(20)]}}
        answers = [client.post("/entities", json=many | {"partial": partial}) for partial in (True, False)]
        assert answers[0].json() == answers[1].json()
        assert [answer.status_code for answer in answers] == [200, 200]
        assert heads[8:].count(1) == 20


def test_artifact_with_two_encoders_is_verified(two_encoders: Artifact, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(two_encoders.path, tmp_path / name)) for name in "ab"]
    assert trunks.groups(copies) == [[copy] for copy in copies]
    manifest = json.loads((copies[0] / "manifest.json").read_text("utf-8"))
    for place, value in (
        (("encoder",), {}),
        (("encoder", "max_tokens"), 0),
        (("encoder", "embedding", "pooling"), "cls"),
        (("encoder", "embedding"), None),
        (("encoder",), None),
        (("marker",), "[X]"),
    ):
        changed = json.loads(json.dumps(manifest))
        parent = changed["labelling"]
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = value
        with pytest.raises(ValueError, match="labelling"):
            parse(changed)
    del manifest["files"]["labels.golden.npz"]
    with pytest.raises(ValueError, match=re.escape("lacks labels.golden.npz")):
        parse(manifest)
    file = copies[1] / "labels.weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ArtifactError, match="altered"):
        load_model(copies[1], "native")


# ---- requests


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ("validation_failed", "/parameters/labels", None)),
        ({"labels": ["a", " "]}, ("validation_failed", "/parameters/labels/1", None)),
        ({"labels": ["a", "\u200b"]}, ("validation_failed", "/parameters/labels/1", None)),
        ({"labels": ["a", "b", "a"]}, ("validation_failed", "/parameters/labels", None)),
        (
            {"labels": ["a"], "aggregation_strategy": "max"},
            ("validation_failed", "/parameters/aggregation_strategy", None),
        ),
        ({"labels": ["a"], "label_scheme": "bilou"}, ("validation_failed", "/parameters/label_scheme", None)),
        ({"labels": ["a"], "stride": 32}, ("validation_failed", "/parameters/stride", 31)),
        ({"labels": [f"label {i}" for i in range(256)]}, ("input_too_long", "/parameters/labels", 128)),
    ],
)
def test_parameters_that_do_not_fit_are_refused(gliner: Draft, parameters: Any, expected: Any) -> None:
    assert rejection(task_of(gliner), TEXT, **parameters) == expected


@pytest.mark.parametrize(
    ("names", "code", "pointer", "limit"),
    [
        (["a", " "], "validation_failed", "/parameters/labels/1", None),
        (["a", "\u200b"], "validation_failed", "/parameters/labels/1", None),
        (["a", "a"], "validation_failed", "/parameters/labels", None),
        (["a", "the " * 47], "validation_failed", "/parameters/labels/1", 48),
    ],
)
def test_labels_of_a_second_encoder_are_checked(
    second: Draft, names: list[str], code: str, pointer: str, limit: int | None
) -> None:
    assert rejection(task_of(second), TEXT, labels=names) == (code, pointer, limit)


def test_labels_of_a_second_encoder_take_no_room_of_a_text(second: Draft) -> None:
    task = task_of(second)
    parameters = {"labels": [f"label {i}" for i in range(256)]}
    labels_, windows = 256, task.encode(task.Request.model_validate({"inputs": TEXT, "parameters": parameters}))
    assert [one.head for one in windows] == [1] * labels_ + [0]
    assert all(one.kept for one in windows[:-1])
    alone = task.encode(task.Request.model_validate({"inputs": TEXT, "parameters": {"labels": ["a"]}}))
    assert windows[-1].input_ids.tolist() == alone[-1].input_ids.tolist()


@pytest.mark.parametrize(
    "parameters",
    [
        {"labels": []},
        {"labels": [str(i) for i in range(257)]},
        {"labels": ["x" * 10_000]},
        *({"labels": ["a"], "threshold": value} for value in (0, -1, 1.5, float("nan"), float("inf"), "0.5")),
    ],
)
def test_parameters_out_of_range_are_refused(gliner: Draft, parameters: Any) -> None:
    with pytest.raises(ValueError, match=r"labels|threshold"):
        task_of(gliner).Request.model_validate({"inputs": "x", "parameters": parameters})


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_empty_text_is_refused(gliner: Draft, text: str) -> None:
    assert rejection(task_of(gliner), text, labels=NAMES) == ("empty_input", "/inputs", None)


@pytest.mark.parametrize("names", [["a", "a"], [" "]])
def test_labels_of_a_text_are_checked(gliclass: Draft, names: list[str]) -> None:
    assert rejection(task_of(gliclass), TEXT, candidate_labels=names)[0] == "validation_failed"


def test_labels_that_leave_no_room_are_refused_and_a_text_is_cut(gliclass: Draft) -> None:
    task = task_of(gliclass)
    code, place, _ = rejection(task, TEXT, candidate_labels=["word " * 199, "y " * 400, "z " * 400])
    assert (code, place) == ("input_too_long", "/parameters/candidate_labels")
    assert rejection(task, "x " * 2000, candidate_labels=NAMES, truncation=False)[0] == "input_too_long"
    request = task.Request.model_validate({"inputs": "x " * 2000, "parameters": {"candidate_labels": NAMES}})
    (encoding,) = task.encode(request)
    assert (len(encoding.input_ids), encoding.left_out > 0) == (task.max_tokens, True)


# ---- windows and spans


@pytest.mark.parametrize("name", ["gliner", "second"])
def test_windows_hold_every_word_and_overlap(name: str, request: pytest.FixtureRequest) -> None:
    task, text = task_of(request.getfixturevalue(name)), " ".join(labels.TEXTS[:4] * 5)
    for stride in (0, 3, None):
        parameters = {"labels": NAMES, "stride": stride}
        encodings = task.encode(task.Request.model_validate({"inputs": text, "parameters": parameters}))
        windows = [one for one in encodings if isinstance(one, LabelledText)]
        ends = [window.first_word + len(window.words) for window in windows]
        starts = [window.first_word for window in windows]
        overlap = 4 if stride is None else stride
        assert starts == [0, *(end - overlap for end in ends[:-1])]
        assert ends[-1] == len(Words(task.tokenizer, text))
        assert max(len(window.words) for window in windows) <= task.labelling.max_words
        assert max(len(window.input_ids) for window in windows) <= task.max_tokens
        assert not any(window.left_out for window in windows)


def test_entities_of_all_windows_are_found_once(gliner: Draft) -> None:
    text = " ".join([TEXT] * 30)
    found = answers(gliner, text, labels=labels.LABELS[0], threshold=0.1)
    spans = [(one["start"], one["end"]) for one in found]
    assert spans == sorted({*spans})
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert spans[-1][1] > len(text) * 0.9


def test_word_that_is_too_long_is_cut_and_told(gliner: Draft) -> None:
    task = task_of(gliner)
    request = task.Request.model_validate({"inputs": f"a {'x' * 2000} b", "parameters": {"labels": NAMES}})
    windows = task.encode(request)
    assert sum(window.left_out for window in windows) > 0
    assert sum(len(window.words) for window in windows) >= 3
    assert rejection(task, "x" * 2000, labels=NAMES, truncation=False)[0] == "input_too_long"


def test_too_many_windows_or_pairs_are_refused(gliner: Draft) -> None:
    assert rejection(task_of(gliner), "a " * 9000, labels=NAMES) == ("input_too_long", "/inputs", 256)
    names = [str(i) for i in range(30)]
    assert rejection(task_of(gliner), ["a " * 1500] * 3, labels=names) == ("input_too_long", "/inputs/2", 1 << 17)


def test_word_without_tokens_is_no_word(tokenizer: Tokenizer) -> None:
    words = Words(tokenizer, "rain \u200b fell")
    assert words.spans.tolist() == [[0, 4], [7, 11]]


def greedy(spans: Spans, *, nested: bool, multi_label: bool) -> list[int]:
    """The search of gliner, span by span."""
    kept: list[int] = []
    triples = list(zip(spans.start.tolist(), spans.end.tolist(), strict=True))
    for i in sorted(range(len(triples)), key=lambda i: -spans.score[i]):
        (a, b), free = triples[i], True
        for c, d in (triples[j] for j in kept):
            if (a, b) == (c, d):
                free = free and multi_label
            elif not (a > d or c > b):
                inside = (a <= c and b >= d) or (c <= a and d >= b)
                free = free and nested and inside
        if free:
            kept.append(i)
    return sorted(kept, key=lambda i: triples[i][0])


@given(
    found=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 2), st.integers(1, 6)), max_size=30),
    nested=st.booleans(),
    multi_label=st.booleans(),
)
def test_selection_equals_the_search_of_gliner(found: list[Any], nested: bool, multi_label: bool) -> None:
    unique = list({(start, start + more, label): score for start, more, label, score in found}.items())
    numbers = np.array([key for key, _ in unique], np.int64).reshape(-1, 3)
    spans = Spans(*numbers.T, np.array([score for _, score in unique], np.float32))
    assert select(spans, nested=nested, multi_label=multi_label) == greedy(
        spans, nested=nested, multi_label=multi_label
    )


# ---- checkpoints


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("words_splitter_type", "spacy"),
        ("span_mode", "conv_share"),
        ("labels_encoder", "other"),
        ("fuse_layers", True),
        ("post_fusion_schema", "l2l"),
        ("class_token_index", -1),
        ("encoder_config", None),
        ("model_type", "gliner_streaming_span"),
        ("max_width", 0),
        ("ent_token", ""),
    ],
)
def test_setting_of_gliner_that_is_not_read_is_refused(tmp_path: Path, setting: str, value: object) -> None:
    (tmp_path / "gliner_config.json").write_text(
        json.dumps({"class_token_index": 7, "encoder_config": {}} | {setting: value}), "utf-8"
    )
    with pytest.raises(ConversionError, match=setting):
        find_label_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "settings_",
    [
        {"architecture_type": "bi-encoder"},
        {"scorer_type": "hopfield"},
        {"pooling_strategy": "rms"},
        {"use_lstm": True},
        {"class_token_pooling": "average", "embed_class_token": False},
        {"extract_text_features": True, "pooling_strategy": "max"},
    ],
)
def test_setting_of_gliclass_that_is_not_read_is_refused(tmp_path: Path, settings_: dict[str, object]) -> None:
    config = {"model_type": "GLiClass", "class_token_index": 7, "encoder_config": {}} | settings_
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ConversionError, match=next(iter(settings_))):
        find_label_checkpoint(tmp_path)


def test_second_encoder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_gliner(tmp_path, labels="bert")
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if "labels_projection" not in name}
    safetensors.numpy.save_file(kept, file)
    with pytest.raises(ConversionError, match="the vectors of labels have 32 numbers, and those of words 48"):
        imported(tmp_path)
    safetensors.numpy.save_file(tensors, file)
    (tmp_path / "labels_tokenizer").rename(tmp_path / "other")
    with pytest.raises(ConversionError, match="no tokenizer of labels"):
        imported(tmp_path)


def test_head_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_gliner(tmp_path, form="token")
    config = json.loads((tmp_path / "gliner_config.json").read_text("utf-8"))
    (tmp_path / "gliner_config.json").write_text(json.dumps(config | {"span_mode": "markerV0"}), "utf-8")
    with pytest.raises(SetupError, match="The head does not fit"):
        imported(tmp_path)
