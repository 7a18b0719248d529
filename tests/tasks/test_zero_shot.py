"""Tests of the task zero-shot. `test_label_parity.py` compares it with the pipeline."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from swiftlet_models.artifact import Embedding, Pooling, seal
from swiftlet_models.datasets import DatasetError
from swiftlet_models.encodings import Encoding
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import evaluation
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks import zero_shot
from swiftlet_serve.tasks._kept_labels import MAX_LABELS, MAX_TOKENS, KeptLabels
from swiftlet_serve.tasks._zero_shot_requests import (
    MAX_CHARACTERS,
    MAX_PAIRS,
    ZeroShotRequest,
    fill,
)
from tests.support.apps import SECRET
from tests.support.artifacts import make_artifact, make_tokenizer
from tests.tasks.test_pipeline_parity import manifest

LABELS = ("contradiction", "neutral", "entailment")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def task(tokenizer: Tokenizer) -> zero_shot.ZeroShot:
    return zero_shot.create(tokenizer, manifest("zero-shot", 3, LABELS, problem="single_label"))


def request(inputs: Any, labels: Any, **parameters: Any) -> ZeroShotRequest:
    body = {"inputs": inputs, "parameters": {"candidate_labels": labels, **parameters}}
    return ZeroShotRequest.model_validate(body)


def answer(task: zero_shot.ZeroShot, made: ZeroShotRequest, logits: list[list[float]]) -> Any:
    rows = [np.array([row], np.float32) for row in logits]
    assert len(task.encode(made)) == len(rows)
    return task.decode(made, [], rows)


def test_pairs_are_texts_with_hypotheses(task: zero_shot.ZeroShot, tokenizer: Tokenizer) -> None:
    encodings = task.encode(request(["ab", "c"], ["x", "y"], hypothesis_template="is {}"))

    pairs = [("ab", "is x"), ("ab", "is y"), ("c", "is x"), ("c", "is y")]
    expected = tokenizer.encode(pairs, 512)
    assert [one.input_ids.tolist() for one in encodings] == [one.input_ids.tolist() for one in expected]
    assert [one.token_type_ids.tolist() for one in encodings] == [one.token_type_ids.tolist() for one in expected]


def test_labels_compete_unless_several_may_fit(task: zero_shot.ZeroShot) -> None:
    logits = [[0.0, 9.0, 1.0], [1.0, -9.0, 2.0]]

    one = answer(task, request("a", ["x", "y"]), logits)
    assert [label["label"] for label in one] == ["y", "x"]
    assert [label["score"] for label in one] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    several = answer(task, request("a", ["x", "y"], multi_label=True), logits)
    assert [label["score"] for label in several] == pytest.approx([1 / (1 + np.exp(-1))] * 2)


def test_of_equal_scores_the_last_label_is_first(task: zero_shot.ZeroShot) -> None:
    found = answer(task, request("a", "x, y , z,,"), [[0.0, 0.0, 1.0]] * 3)

    assert [label["label"] for label in found] == ["z", "y", "x"]


def test_scores_near_one_differ(task: zero_shot.ZeroShot) -> None:
    found = answer(task, request("a", ["x", "y"], multi_label=True), [[-10.0, 0.0, 10.0], [-11.0, 0.0, 11.0]])

    assert found[0] == {"label": "y", "score": pytest.approx(1)}
    assert found[0]["score"] > found[1]["score"]


def test_equal_labels_have_equal_scores(task: zero_shot.ZeroShot) -> None:
    found = answer(task, request("a", ["x", "y", "x"]), [[0.0, 0.0, 1.0], [0.0, 0.0, 3.0], [0.0, 0.0, 1.0]])

    assert [one["label"] for one in found] == ["y", "x", "x"]
    assert found[1]["score"] == found[2]["score"]


def test_bad_text_fails_alone_in_partial_responses(tmp_path: Path) -> None:
    path = str(make_artifact(tmp_path, "zero-shot").path)
    runtime = LocalRuntime.load(Settings(models=(path,), engine="echo", cores=1))
    parameters = {"candidate_labels": ["x", "y"]}
    with TestClient(create_app(runtime)) as client:
        (alone,) = client.post("/zero-shot", json={"inputs": ["a"], "parameters": parameters}).json()
        body = {"inputs": ["a", " "], "parameters": parameters, "partial": True}
        good, bad = client.post("/zero-shot", json=body).json()

    assert good == alone
    assert bad["code"] == "empty_input"


@pytest.mark.parametrize(
    ("inputs", "labels", "template", "partial"),
    [
        ("a", ["x" * 1000] * 200, "{0}" * 9, False),  # a template repeats a label
        ("a", "x" * 60_000, "{0}" * 20, False),
        (["a"] * 200, "x" * 8000, "{}", True),  # each input of a partial request repeats the labels
    ],
)
def test_hypotheses_beyond_a_number_of_characters_are_refused(
    inputs: Any, labels: Any, template: str, partial: bool, task: zero_shot.ZeroShot
) -> None:
    made = request(inputs, labels, hypothesis_template=template)
    with pytest.raises(Unprocessable) as caught:
        task.split(made) if partial else task.encode(made)
    assert caught.value.field_errors[0].limit == MAX_CHARACTERS


def test_pairs_of_a_partial_request_have_the_limit_of_all(task: zero_shot.ZeroShot) -> None:
    with pytest.raises(Unprocessable) as caught:
        task.split(request(["a"] * 129, ["x", "y"]))
    assert caught.value.field_errors[0].code == "too_many_pairs"
    assert len(task.split(request(["a"] * 128, ["x", "y"]))) == 128


@pytest.mark.parametrize(
    "labels", [("entailment", "not_entailment"), ("Entailed", "other", "contradiction"), ("x", "ENTAILS")]
)
def test_entailment_is_found_by_name(labels: tuple[str, ...], tokenizer: Tokenizer) -> None:
    task = zero_shot.create(tokenizer, manifest("zero-shot", len(labels), labels, problem="single_label"))
    entailment = next(i for i, label in enumerate(labels) if label.lower().startswith("entail"))
    contradiction = len(labels) - 1 if entailment == 0 else 0
    logits = np.zeros(len(labels))
    logits[entailment], logits[contradiction] = 3.0, 1.0

    (found,) = answer(task, request("a", ["x"]), [logits.tolist()])
    assert found["score"] == pytest.approx(1 / (1 + np.exp(-2)))


@pytest.mark.parametrize(
    ("labels", "problem"),
    [(("a", "b"), "single_label"), (("entailment",), "single_label"), (LABELS, "multi_label"), ((), None)],
)
def test_other_models_are_refused(labels: tuple[str, ...], problem: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="zero-shot needs"):
        zero_shot.create(tokenizer, manifest("zero-shot", max(1, len(labels)), labels, problem=problem))


@pytest.mark.parametrize(
    ("template", "hypothesis"),
    [("{}", "x"), ("{0} or {0}?", "x or x?"), ("{{{}}}", "{x}"), ("이 글은 {}이다.", "이 글은 x이다.")],
)
def test_template_has_the_label_in_its_place(template: str, hypothesis: str) -> None:
    assert fill(template, ["x"]) == [hypothesis] == [template.format("x")]


@pytest.mark.parametrize(
    "template",
    ["", "none", "{", "}", "{label}", "{1}", "{} {}", "{} {0}", "{:>1000000000}", "{!r}", "{0.__class__}", "{0[0]}"],
)
def test_template_without_a_place_is_refused(template: str, task: zero_shot.ZeroShot) -> None:
    with pytest.raises(Unprocessable) as refused:
        task.encode(request("a", [SECRET], hypothesis_template=template))
    assert [error.code for error in refused.value.field_errors] == ["no_placeholder"]


@given(st.text(st.sampled_from("{}0ab!:. "), max_size=8), st.text(max_size=5))
def test_template_is_filled_as_by_format_or_refused(template: str, label: str) -> None:
    try:
        filled = fill(template, [label, "x"])
    except Unprocessable:
        return
    assert filled == [template.format(label), template.format("x")]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (request("", ["x"]), "empty_input"),
        (request(["a", " \n"], ["x"]), "empty_input"),
        (request("a", " , ,"), "validation_failed"),
        (request(["a"] * 64, ["x"] * 5), "validation_failed"),
        (request("a", ["x " * 500]), "input_too_long"),
        (request("a " * 600, ["x"], truncation=False), "input_too_long"),
    ],
)
def test_invalid_request_is_refused(made: ZeroShotRequest, code: str, task: zero_shot.ZeroShot) -> None:
    with pytest.raises(Unprocessable) as refused:
        task.encode(made)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "labels",
    [None, [], [1], {"a": 1}, [""] * 257, ["x" * 1001], ["label"] * 10_000, "1," * 32_769],
    ids=lambda each: str(each)[:9],
)
def test_labels_of_another_form_are_refused(labels: Any) -> None:
    with pytest.raises(ValidationError):
        request("a", labels)


def test_long_text_is_cut_and_the_hypothesis_is_not(task: zero_shot.ZeroShot, tokenizer: Tokenizer) -> None:
    (encoding,) = task.encode(request("a " * 3000, ["xyz"], hypothesis_template="{}"))

    hypothesis = tokenizer.encode(["xyz"], 512)[0].input_ids[1:]
    assert len(encoding.input_ids) == 512
    assert encoding.input_ids[-len(hypothesis) :].tolist() == hypothesis.tolist()


def test_evaluator_takes_the_labels_of_the_file_as_candidates(task: zero_shot.ZeroShot, tmp_path: Path) -> None:
    data = tmp_path / "intents.jsonl.gz"
    lines = [{"text": "a", "label": "pay"}, {"text": " ", "label": "pay"}, {"text": "b", "label": "ask"}]
    data.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    evaluator = evaluation.create("zero-shot", task)

    one, other = evaluator.cases(data, 0, None)
    assert one.body == {"inputs": "a", "parameters": {"candidate_labels": ["ask", "pay"]}}
    (grade,) = other.grade([{"label": "ask", "score": 0.9}, {"label": "pay", "score": 0.1}])
    assert (grade.scores, grade.answer) == ({"accuracy": 1.0}, "ask")
    assert evaluator.baselines([one, other])["always the commonest label"].value == 50


def test_evaluator_refuses_other_files(task: zero_shot.ZeroShot, tmp_path: Path) -> None:
    data = tmp_path / "texts.tsv"
    data.write_text("label\tsentence\n0\tgood\n")
    with pytest.raises(DatasetError, match=r"texts\.tsv: line 2: its label is a number and not a name"):
        list(evaluation.create("zero-shot", task).cases(data, 0, None))


def test_evaluator_grades_the_relations_of_pairs(task: zero_shot.ZeroShot, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    pairs = [("a", "b", "neutral"), ("c", "d {}", "REFUTES")]
    data.write_text("\n".join(json.dumps(dict(zip(("premise", "hypothesis", "label"), p, strict=True))) for p in pairs))
    evaluator = evaluation.create("zero-shot", task)
    cases = list(evaluator.cases(data, 0, None))
    relations = evaluator.task(cases)
    requests = [ZeroShotRequest.model_validate(case.body) for case in cases]
    responses = [answer(relations, one, [[1.0, 0.0, 3.0]]) for one in requests]

    (expected,) = task.tokenizer.encode([pairs[1][:2]], 512)
    assert relations.encode(requests[1])[0].input_ids.tolist() == expected.input_ids.tolist()
    assert [one["label"] for one in responses[0]] == ["entailment", "contradiction", "neutral"]
    assert sum(one["score"] for one in responses[0]) == pytest.approx(1)
    assert [grade.scores for grade in evaluator.grades(cases, responses)] == [{"accuracy": 0.0}] * 2
    responses = [answer(relations, one, [[1.0, 2.0, 0.0]]) for one in requests]
    assert [grade.scores for grade in evaluator.grades(cases, responses)] == [{"accuracy": 1.0}] * 2
    assert evaluator.baselines(cases)["always the commonest label"].value == 100
    assert evaluator.task(list(evaluator.cases(data, 1, 2))) is not None


def test_evaluator_has_no_pairs_for_an_embedding_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text(json.dumps({"premise": "a", "hypothesis": "b", "label": "entailment"}))
    made = zero_shot.create(tokenizer, replace(manifest("zero-shot", 3), embedding=Embedding("mean", normalize=True)))
    with pytest.raises(DatasetError, match=r"pairs\.jsonl holds premises and hypotheses, and an embedding model"):
        list(evaluation.create("zero-shot", made).cases(data, 0, None))


def test_evaluator_offers_the_right_label_and_nine_others(task: zero_shot.ZeroShot, tmp_path: Path) -> None:
    data = tmp_path / "intents.jsonl"
    data.write_text("\n".join(json.dumps({"text": str(i), "label": f"PlayMusic_{i % 30}"}) for i in range(60)))
    cases = list(evaluation.create("zero-shot", task).cases(data, 0, None))
    offered = [case.body["parameters"]["candidate_labels"] for case in cases]

    assert all(
        len(set(labels)) == 10 and case.expected[0] in labels for labels, case in zip(offered, cases, strict=True)
    )
    assert offered[0] != offered[30]  # of two texts with one label
    assert cases[7].expected == ("Play Music 7",)
    (last,) = evaluation.create("zero-shot", task).cases(data, 59, 60)
    assert last.body == cases[59].body


def test_rows_of_a_text_do_not_depend_on_the_others(task: zero_shot.ZeroShot) -> None:
    many = task.encode(request(["ab", "c"], ["x", "y"]))
    alone: list[Encoding] = [one for text in ("ab", "c") for one in task.encode(request(text, ["x", "y"]))]

    assert [one.input_ids.tolist() for one in many] == [one.input_ids.tolist() for one in alone]


def embedding_task(tokenizer: Tokenizer, pooling: Pooling = "mean", **prompts: Any) -> Any:
    embedding = Embedding(pooling, normalize=True, **prompts)
    return zero_shot.create(tokenizer, replace(manifest("zero-shot", 4), head="embedding", embedding=embedding))


@pytest.fixture(scope="module")
def embedder(tokenizer: Tokenizer) -> Any:
    return embedding_task(tokenizer)


TEXT, OTHER_TEXT = [1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]
NEAR, FAR = [3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0]  # cosines with TEXT: 0.6 and 0


def test_embedding_model_reads_texts_and_labels_alone(embedder: Any, tokenizer: Tokenizer) -> None:
    encodings = embedder.encode(request(["ab", "c"], ["x", "y", "z"]))

    expected = tokenizer.encode(["ab", "c", "x", "y", "z"], 512)
    assert [one.input_ids.tolist() for one in encodings] == [one.input_ids.tolist() for one in expected]


def test_vectors_of_the_last_token_are_read_there(tokenizer: Tokenizer) -> None:
    """Of texts, of their windows and of labels, also of those that are kept."""
    task = embedding_task(tokenizer, "last")
    for made in (request(["ab", "c"], ["x", "yz"]), request("ab " * 600, ["yz", "q"], truncation="window")):
        encodings = task.encode(made)
        assert len(encodings) >= 4
        assert [one.focus.tolist() for one in encodings] == [[len(one.input_ids) - 1] for one in encodings]


def test_embedding_model_does_not_tokenise_known_labels_again(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = embedding_task(tokenizer)
    asked: list[str] = []
    ids = Tokenizer._ids

    def counted(self: Tokenizer, texts: list[str], *, mask: bool) -> list[Any]:
        asked.extend(texts)
        return ids(self, texts, mask=mask)

    monkeypatch.setattr(Tokenizer, "_ids", counted)
    _, x, y = embedder.encode(request("ab", ["x", "y"]))
    assert {*asked} == {"ab", "x", "y"}

    asked.clear()
    _, again, other, new = embedder.encode(request("c", ["y", "x", "z"]))
    assert {*asked} == {"c", "z"}
    assert (again, other) == (y, x)
    assert new.input_ids.tolist() == tokenizer.encode(["z"], 512)[0].input_ids.tolist()


def test_embedding_model_tells_the_characters_that_it_has_not_read(tokenizer: Tokenizer) -> None:
    embedder, made = embedding_task(tokenizer), request("abc", ["x", "yy"])
    assert embedder.unread(made) == 3 + 1 + 2
    embedder.encode(made)
    assert embedder.unread(made) == 3
    assert embedder.unread(request("abc", ["x"], hypothesis_template="is {}")) == 3 + 4


@pytest.mark.parametrize("template", ["no place", "{0}" * 333], ids=["wrong", "long"])
def test_a_request_that_is_refused_counts_as_unread(tokenizer: Tokenizer, template: str) -> None:
    """Its hypotheses are not made to be counted."""
    made = request("abc", ["x" * 1000] * 256, hypothesis_template=template)
    assert embedding_task(tokenizer).unread(made) >= 256_000


def test_labels_that_are_kept_are_bounded(tokenizer: Tokenizer) -> None:
    made: list[str] = []

    def encode(label: str) -> Encoding:
        made.append(label)
        return tokenizer.encode([label], 512)[0]

    kept = KeptLabels(encode)
    for i in range(MAX_LABELS + 1):
        assert kept[str(i)] is kept[str(i)]
    assert len(made) == MAX_LABELS + 1
    assert "0" not in kept
    assert "1" in kept
    assert kept["x " * MAX_TOKENS] is not kept["x " * MAX_TOKENS]


def test_embedding_model_uses_a_template_of_the_request_only(embedder: Any, tokenizer: Tokenizer) -> None:
    (_, label) = embedder.encode(request("ab", ["x"], hypothesis_template="is {}"))

    assert label.input_ids.tolist() == tokenizer.encode(["is x"], 512)[0].input_ids.tolist()


@pytest.mark.parametrize(
    ("label", "read"),
    [
        ("PlayMusic", "play music"),
        ("play_music", "play music"),
        ("iPhone", "iphone"),
        ("___", "___"),
        (" _ ", "_"),
        ("when? PlayMusic", "when? play music"),
    ],
)
def test_embedding_model_reads_a_name_as_its_words_unless_they_take_more_tokens(
    tmp_path: Path, label: str, read: str
) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##m", "##u", "##sic", "music", "when", "?", "_"]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, "iphone", "i", "phone", "about"]), "utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)

    for prompts in ({}, {"prompts": {"topic": "about "}, "default_prompt": "topic"}):
        encoding = embedding_task(tokenizer, **prompts).encode(request("music", [label]))[-1]

        assert [*encoding.input_ids] == [*tokenizer.encode([("about " if prompts else "") + read], 64)[0].input_ids]


def test_embedding_model_puts_the_prompt_before_texts_and_labels(tokenizer: Tokenizer) -> None:
    task = embedding_task(tokenizer, prompts={"topic": "about "}, default_prompt="topic")

    encodings = task.encode(request("ab", ["x"]))
    expected = tokenizer.encode(["about ab", "about x"], 512)
    assert [one.input_ids.tolist() for one in encodings] == [one.input_ids.tolist() for one in expected]


def test_scores_of_an_embedding_model_grow_with_the_cosine(embedder: Any) -> None:
    made = request(["a", "b"], ["far", "near"])
    one, other = answer(embedder, made, [TEXT, OTHER_TEXT, FAR, NEAR])

    assert [label["label"] for label in one] == [label["label"] for label in other] == ["near", "far"]
    odds = [np.exp(zero_shot.SCALE * cosine) for cosine in (0.6, 0.0)]
    assert [label["score"] for label in one] == pytest.approx(np.array(odds) / sum(odds))
    assert other[0]["score"] > one[0]["score"]


def test_labels_of_an_embedding_model_have_probabilities_of_their_own(embedder: Any) -> None:
    logits = [zero_shot.SCALE * (cosine - zero_shot.THRESHOLD) for cosine in (0.6, 0.0)]
    expected = [1 / (1 + np.exp(-logit)) for logit in logits]

    several = answer(embedder, request("a", ["far", "near"], multi_label=True), [TEXT, FAR, NEAR])
    assert [label["score"] for label in several] == pytest.approx(expected)
    (single,) = answer(embedder, request("a", ["near"]), [TEXT, NEAR])
    assert single["score"] == pytest.approx(expected[0])
    (nothing,) = answer(embedder, request("a", ["near"]), [[0.0] * 4, NEAR])
    assert nothing["score"] == pytest.approx(1 / (1 + np.exp(zero_shot.SCALE * zero_shot.THRESHOLD)))


@pytest.mark.parametrize(
    ("made", "code", "pointer"),
    [
        (request(["a", " \n"], ["x"]), "empty_input", "/inputs/1"),
        (request("a", " , ,"), "validation_failed", "/parameters/candidate_labels"),
        (request(["a"] * 64, ["x"] * 5), "validation_failed", "/parameters/candidate_labels"),
        (request("a", ["y", "xy " * 300]), "input_too_long", "/parameters/candidate_labels"),
        (request(["b", "a " * 600], ["x"], truncation=False), "input_too_long", "/inputs/1"),
        (request("a", ["x"], hypothesis_template="no place"), "validation_failed", "/parameters/hypothesis_template"),
    ],
)
def test_embedding_model_refuses_the_same_requests(
    made: ZeroShotRequest, code: str, pointer: str, embedder: Any
) -> None:
    with pytest.raises(Unprocessable) as refused:
        embedder.encode(made)
    assert refused.value.code == code
    assert [error.pointer for error in refused.value.field_errors] == [pointer]


def test_embedding_model_answers_one_text_with_as_many_labels_as_pairs_are_allowed(tmp_path: Path) -> None:
    made = make_artifact(tmp_path, "embed")
    seal(made.path, replace(made.manifest, task="zero-shot"))
    labels = [f"label {number}" for number in range(MAX_PAIRS)]
    with TestClient(create_app(LocalRuntime.load(Settings(models=(str(made.path),), engine="onnx_cpu")))) as client:
        body = {"inputs": "some text", "parameters": {"candidate_labels": labels}}
        found = client.post("/zero-shot", json=body)
    assert found.status_code == 200
    assert len(found.json()) == MAX_PAIRS
    assert sum(label["score"] for label in found.json()) == pytest.approx(1)


@pytest.mark.parametrize("blank", [" ", "", "\t\n", "\u200b", "\x00\x1f", "\u2060\ufeff"])
@pytest.mark.parametrize("partial", [False, True])
def test_blank_label_is_refused_by_both_kinds_of_models(task: Any, embedder: Any, blank: str, partial: bool) -> None:
    for one in (task, embedder):
        body = {"inputs": ["a", "b"], "parameters": {"candidate_labels": ["x", blank]}, "partial": partial}
        with pytest.raises(Unprocessable, match="A label is empty") as caught:
            one.encode(one.Request.model_validate(body))
        assert caught.value.code == "validation_failed"
        assert caught.value.field_errors[0].pointer == "/parameters/candidate_labels/1"
