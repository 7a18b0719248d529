"""What the three tasks accept, refuse and answer; that they agree with the pipelines is shown in `test_parity.py`."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from swiftlet_serve.models.artifact import Manifest
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service.errors import Unprocessable
from swiftlet_serve.service.tasks import MAX_INPUTS, classify, fill_mask, qa, softmax
from swiftlet_serve.service.types import Batch
from tests.goldens import cases
from tests.support.artifacts import HEADS

FILES = {"vocab": "vocab.txt", "spiece": "spiece.model"}
MAX_TOKENS = 64
LABELS = ("bad", "fair", "good")


def manifest(task: Any, width: int, labels: tuple[str, ...] = (), problem: Any = None) -> Manifest:
    about = {"name": "fake", "version": "1", "architecture": "bert", "precision": "fp32", "vocab_size": 9}
    sizes = {"max_tokens": MAX_TOKENS, "width": width, "tolerance": 1e-3}
    return Manifest(task=task, head=HEADS[task], labels=labels, problem=problem, config={}, source={}, **about, **sizes)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=list(FILES))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(cases.HERE / FILES[request.param], directory)
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def classifier(tokenizer: Tokenizer) -> classify.Classify:
    return classify.create(tokenizer, manifest("classify", 3, LABELS, problem="single_label"))


@pytest.fixture(scope="module")
def answerer(tokenizer: Tokenizer) -> qa.Qa:
    return qa.create(tokenizer, manifest("qa", 2))


@pytest.fixture(scope="module")
def filler(tokenizer: Tokenizer) -> fill_mask.FillMask:
    return fill_mask.create(tokenizer, manifest("fill-mask", tokenizer.vocab_size))


def encode(task: Any, inputs: object, **parameters: object) -> Any:
    """Encodes a request that came as JSON."""
    body = json.dumps({"inputs": inputs, "parameters": parameters})
    return task.encode(task.Request.model_validate_json(body))


def refusal(task: Any, inputs: object, **parameters: object) -> tuple[str, str, float | None]:
    """Code, pointer and limit of the error that a request meets."""
    with pytest.raises(Unprocessable) as caught:
        encode(task, inputs, **parameters)
    (fault,) = caught.value.field_errors
    return caught.value.code, fault.pointer, fault.limit


def test_the_example_of_every_task_can_be_answered(
    classifier: Any, answerer: Any, filler: Any, tokenizer: Tokenizer
) -> None:
    for task, width in ((classifier, 3), (answerer, 2), (filler, tokenizer.vocab_size)):
        (example,) = task.Request.model_json_schema()["examples"]
        request = task.Request.model_validate(example)
        encodings = task.encode(request)
        batch = Batch.of(encodings)
        rows = batch.split_rows(np.zeros((len(batch.focus), width), np.float32))
        assert json.loads(json.dumps(task.decode(request, encodings, rows)))


def test_every_field_is_documented(classifier: Any, answerer: Any, filler: Any) -> None:
    for task in (classifier, answerer, filler):
        schema = task.Request.model_json_schema()
        for model in (schema, *schema["$defs"].values()):
            assert all(field.get("description") for field in model["properties"].values()), model["title"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": None},
        {"inputs": 5},
        {"inputs": []},
        {"inputs": [[]]},
        {"inputs": [["a", "b"]]},
        {"inputs": {"text": "a", "other": "b"}},
        {"inputs": ["a"] * (MAX_INPUTS + 1)},
        {"inputs": "a", "unknown": 1},
        {"inputs": "a", "model": 5},
        {"inputs": "a", "options": {"unknown": True}},
        {"inputs": "a", "parameters": {"unknown": 1}},
        {"inputs": "a", "parameters": {"top_k": 0}},
        {"inputs": "a", "parameters": {"top_k": "1"}},
        {"inputs": "a", "parameters": {"top_k": 1.0}},
        {"inputs": "a", "parameters": {"top_k": True}},
        {"inputs": "a", "parameters": {"top_k": 10**9}},
        {"inputs": "a", "parameters": {"function_to_apply": "exp"}},
        {"inputs": "a", "parameters": {"truncation": "no"}},
        {"inputs": "a", "parameters": {"targets": []}},
        {"inputs": "a", "parameters": {"doc_stride": -1}},
        {"inputs": "a", "parameters": {"max_answer_len": 0}},
    ],
)
def test_what_is_not_understood_is_refused(body: dict[str, Any], classifier: Any, answerer: Any, filler: Any) -> None:
    for task in (classifier, answerer, filler):
        with pytest.raises(ValidationError):
            task.Request.model_validate_json(json.dumps(body))


def test_texts_that_were_read_are_not_kept(classifier: Any, answerer: Any, filler: Any) -> None:
    """A megabyte of users' texts would stay in memory, and lie between everything else."""

    def read(first: int, last: int) -> None:
        for number in range(first, last):
            text = f"text {number}"
            for task in (classifier, filler):
                task.Request.model_validate_json(json.dumps({"inputs": text}))
            answerer.Request.model_validate_json(json.dumps({"inputs": {"question": text, "context": f"con{text}"}}))

    read(0, 50)
    tracemalloc.start()
    try:
        read(50, 1050)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 20_000  # bytes; kept texts would be 4,000 strings of 60 each


def test_what_hugging_face_clients_send_is_accepted(classifier: Any) -> None:
    for body in (
        {"inputs": "a", "parameters": {}},
        {"inputs": "a", "parameters": None, "model": "m"},
        {"inputs": ["a", {"text": "a", "text_pair": "b"}], "options": {"use_cache": False, "wait_for_model": True}},
    ):
        assert classifier.encode(classifier.Request.model_validate_json(json.dumps(body)))


# ---- classify


def test_one_text_is_answered_by_a_list_in_a_list_of_all_labels(classifier: classify.Classify) -> None:
    request = classify.ClassifyRequest(inputs="A film.")
    row = np.array([[0.0, 1.0, 3.0]], np.float32)
    (labels,) = classifier.decode(request, classifier.encode(request), [row])
    assert [each["label"] for each in labels] == ["good", "fair", "bad"]
    assert [each["score"] for each in labels] == pytest.approx([0.84379, 0.1142, 0.04201], abs=1e-4)


def test_a_list_of_two_texts_is_two_inputs_and_not_a_pair(classifier: classify.Classify) -> None:
    pair, listed = encode(classifier, {"text": "a", "text_pair": "b"}), encode(classifier, ["a", "b"])
    assert (len(pair), len(listed)) == (1, 2)
    assert set(pair[0].token_type_ids) == {0, 1}
    assert len(listed[0].input_ids) < len(pair[0].input_ids)


@pytest.mark.parametrize(
    ("problem", "labels", "function"),
    [
        ("single_label", 3, "softmax"),
        ("single_label", 1, "sigmoid"),
        ("multi_label", 3, "sigmoid"),
        ("regression", 1, "none"),
        ("regression", 3, "none"),
    ],
)
def test_the_function_follows_what_the_model_was_trained_for(problem: Any, labels: int, function: str) -> None:
    assert classify.default_function(problem, labels) == function


@given(logits=hnp.arrays(np.float64, 4, elements=st.floats(-1e30, 1e30)))
def test_scores_are_finite_however_large_the_logits(logits: Any) -> None:
    with np.errstate(all="raise", under="ignore"):
        assert softmax(logits).sum() == pytest.approx(1)
        assert ((classify.sigmoid(logits) >= 0) & (classify.sigmoid(logits) <= 1)).all()


def test_classify_refuses_what_it_cannot_read(classifier: classify.Classify) -> None:
    long = "a " * MAX_TOKENS
    limit = ("input_too_long", MAX_TOKENS)
    assert refusal(classifier, "") == ("empty_input", "/inputs", None)
    assert refusal(classifier, ["a", " \t\n\u3000"]) == ("empty_input", "/inputs/1", None)
    assert refusal(classifier, [{"text": ""}]) == ("empty_input", "/inputs/0/text", None)
    assert refusal(classifier, ["a", long], truncation=False) == (limit[0], "/inputs/1", limit[1])
    assert refusal(classifier, {"text": "a", "text_pair": long}, truncation=False) == (limit[0], "/inputs", limit[1])
    assert len(encode(classifier, long)[0].input_ids) == MAX_TOKENS


def test_a_text_of_which_nothing_is_left_is_still_answered(classifier: classify.Classify) -> None:
    for text in ("\u200b", "\x00\x01", "\u0301"):
        (encoding,) = encode(classifier, text)
        assert len(encoding.input_ids) >= 2


# ---- question answering


def reference_spans(starts: Any, ends: Any, most: int, longest: int) -> list[tuple[int, int, float]]:
    """`decode_spans` of transformers 4.57.1, without the spans that are none."""
    spans = [
        (first, last, starts[first] * ends[last])
        for first in range(len(starts))
        for last in range(first, min(first + longest, len(starts)))
    ]
    return sorted(spans, key=lambda span: -span[2])[:most]


@given(data=st.data(), count=st.integers(1, 12), most=st.integers(1, 80), longest=st.integers(1, 15))
def test_the_best_spans_are_the_best_of_all_spans(data: st.DataObject, count: int, most: int, longest: int) -> None:
    probabilities = hnp.arrays(np.float64, count, elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
    starts, ends = data.draw(probabilities), data.draw(probabilities)
    assert list(qa.best_spans(starts, ends, most, longest)) == reference_spans(starts, ends, most, longest)


@given(
    context=st.text(alphabet=st.characters(codec="utf-8"), min_size=1), seed=st.integers(0, 9), aligned=st.booleans()
)
@settings(deadline=None, max_examples=400)
def test_every_answer_is_the_slice_it_claims_to_be(answerer: qa.Qa, context: str, seed: int, aligned: bool) -> None:
    parameters = {"top_k": 20, "align_to_words": aligned, "max_seq_len": 16, "doc_stride": 2}
    inputs = {"question": "Who?", "context": context}
    request = qa.QaRequest.model_validate({"inputs": inputs, "parameters": parameters})
    if not context.strip() or not len(answerer.tokenizer.tokenize([context])[0]):
        assert refusal(answerer, inputs) == ("empty_input", "/inputs/context", None)
        return
    windows = answerer.encode(request)
    noise = np.random.default_rng(seed)
    rows = [noise.normal(size=(len(window.focus), 2)).astype(np.float32) for window in windows]
    found = answerer.decode(request, windows, rows)
    assert isinstance(found, list)
    assert found
    for answer in found:
        assert 0 <= answer["start"] <= answer["end"] <= len(context)
        assert context[answer["start"] : answer["end"]] == answer["answer"]


def point_at(windows: Any, context: str, answer: str) -> list[Any]:
    """Logits that are certain of one stretch of the context."""
    start = context.index(answer)
    rows = []
    for window in windows:
        row = np.full((len(window.focus), 2), -20, np.float32)
        inside = window.context_start + np.arange(len(window.token_spans))
        row[inside[(window.token_spans[:, 0] <= start) & (start < window.token_spans[:, 1])], 0] = 20
        end = start + len(answer)
        row[inside[(window.token_spans[:, 0] < end) & (end <= window.token_spans[:, 1])], 1] = 20
        rows.append(row)
    return rows


def test_an_answer_is_found_in_a_long_context(answerer: qa.Qa) -> None:
    context = " ".join([*cases.SENTENCES, "👨‍👩‍👧 é 한국 The answer is forty-two here.", *cases.SENTENCES[:9]])
    request = qa.QaRequest.model_validate({"inputs": {"question": "What is it?", "context": context}})
    windows = answerer.encode(request)
    assert len(windows) > 20
    assert all(len(window.input_ids) <= MAX_TOKENS for window in windows)
    answer = answerer.decode(request, windows, point_at(windows, context, "forty-two"))
    assert isinstance(answer, dict)
    assert answer["answer"].strip() == "forty-two"
    assert answer["score"] > 0.99


def test_an_impossible_question_has_the_empty_answer(answerer: qa.Qa) -> None:
    request = qa.QaRequest.model_validate(
        {"inputs": {"question": "Who?", "context": "Clara."}, "parameters": {"handle_impossible_answer": True}}
    )
    (window,) = answerer.encode(request)
    row = np.zeros((len(window.focus), 2), np.float32)
    row[0] = 20
    answer = answerer.decode(request, [window], [row])
    assert answer == {"score": pytest.approx(1), "start": 0, "end": 0, "answer": ""}


@pytest.mark.parametrize(
    ("inputs", "count"),
    [
        ({"question": "a", "context": "b"}, None),
        ([{"question": "a", "context": "b"}], None),
        ([{"question": "a", "context": "b"}, {"question": "c", "context": "d"}], 2),
        ({"question": ["a", "c"], "context": "b"}, 2),
        ({"question": ["a", "c", "d"], "context": ["b", "b", "e"]}, 3),
    ],
)
def test_questions_come_alone_or_together(answerer: qa.Qa, inputs: object, count: int | None) -> None:
    request = qa.QaRequest.model_validate({"inputs": inputs})
    windows = answerer.encode(request)
    rows = [np.zeros((len(window.focus), 2), np.float32) for window in windows]
    found = answerer.decode(request, windows, rows)
    assert isinstance(found, dict) if count is None else len(found) == count  # type: ignore[arg-type]


def test_qa_refuses_what_it_cannot_answer(answerer: qa.Qa) -> None:
    good = {"question": "a", "context": "b"}
    long = "a " * MAX_TOKENS
    assert refusal(answerer, good | {"question": ""}) == ("empty_input", "/inputs/question", None)
    assert refusal(answerer, [good, good | {"context": " "}]) == ("empty_input", "/inputs/1/context", None)
    assert refusal(answerer, {"question": ["a", ""], "context": "b"}) == ("empty_input", "/inputs/question/1", None)
    assert refusal(answerer, {"question": ["a"], "context": ["b", "c"]}) == ("validation_failed", "/inputs/context", 1)
    code, pointer, limit = refusal(answerer, good | {"question": long})
    assert (code, pointer) == ("input_too_long", "/inputs/question")
    assert limit == MAX_TOKENS - 4
    code, pointer, _ = refusal(answerer, good | {"question": "x" * 100_000})
    assert (code, pointer) == ("input_too_long", "/inputs/question")
    code, pointer, limit = refusal(answerer, good | {"context": "a " * qa.MAX_CHARACTERS})
    assert (code, pointer, limit) == ("input_too_long", "/inputs/context", qa.MAX_CHARACTERS)
    code, pointer, limit = refusal(answerer, good | {"context": "a " * 60 * qa.MAX_WINDOWS})
    assert (code, pointer, limit) == ("input_too_long", "/inputs/context", qa.MAX_WINDOWS)
    too_many = MAX_TOKENS + 1
    failed = "validation_failed"
    assert refusal(answerer, good, max_seq_len=too_many) == (failed, "/parameters/max_seq_len", MAX_TOKENS)
    assert refusal(answerer, good, doc_stride=too_many) == (failed, "/parameters/doc_stride", MAX_TOKENS)
    code, pointer, _ = refusal(answerer, good | {"context": long}, doc_stride=MAX_TOKENS - 1)
    assert (code, pointer) == (failed, "/parameters/doc_stride")


def test_the_texts_of_a_request_are_bounded_together_before_they_are_read(
    answerer: qa.Qa, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: object) -> None:
        raise AssertionError("was tokenised")

    monkeypatch.setattr(answerer.tokenizer, "tokenize", read)
    samples = [{"question": "a", "context": f"{i} " * 10_000} for i in range(40)]
    code, pointer, limit = refusal(answerer, samples)
    assert (code, limit) == ("input_too_long", qa.MAX_CHARACTERS)
    assert pointer.endswith("/context")


def test_a_context_asked_about_often_is_read_once(answerer: qa.Qa) -> None:
    context = " ".join(cases.SENTENCES[:9])
    windows = encode(answerer, {"question": [f"{i}?" for i in range(3)], "context": context})
    assert {window.question_index for window in windows} == {0, 1, 2}


# ---- fill-mask


def fill(filler: fill_mask.FillMask, inputs: object, wanted: str, **parameters: object) -> Any:
    """The answer of a network that is certain of one token."""
    request = filler.Request.model_validate({"inputs": inputs, "parameters": parameters})
    encodings = filler.encode(request)
    tokenizer = filler.tokenizer
    rows = [np.zeros((len(encoding.focus), tokenizer.vocab_size), np.float32) for encoding in encodings]
    for row in rows:
        row[:, tokenizer.tokenize([wanted])[0].ids[-1]] = 20
    return filler.decode(request, encodings, Batch.of(encodings).split_rows(np.concatenate(rows)))


def test_one_mask_is_answered_by_a_flat_list(filler: fill_mask.FillMask) -> None:
    found = fill(filler, "and [MASK] river", "the", top_k=2)
    assert len(found) == 2
    assert found[0]["token_str"] == "the"
    assert found[0]["sequence"] == "and the river"
    assert found[0]["score"] > 0.99
    assert fill(filler, ["and [MASK] river"], "the", top_k=2) == found


def test_several_masks_are_answered_by_a_list_each(filler: fill_mask.FillMask) -> None:
    found = fill(filler, "the [MASK] and [MASK].", "river", top_k=3)
    assert [len(each) for each in found] == [3, 3]
    assert "[MASK]" in found[0][0]["sequence"]
    several = fill(filler, ["the [MASK] and [MASK].", "a [MASK]"], "river", top_k=3)
    assert several[0] == found
    assert isinstance(several[1][0], dict)


def test_targets_are_scored_against_the_whole_vocabulary(filler: fill_mask.FillMask) -> None:
    found = fill(filler, "a [MASK]", "river", targets=["the", "bread", "the"], top_k=50)
    assert 1 <= len(found) <= 2
    assert sum(each["score"] for each in found) < 1e-5
    (single,) = fill(filler, "a [MASK]", "river", targets="river")
    assert single["score"] > 0.99


def test_fill_mask_refuses_what_it_cannot_fill(filler: fill_mask.FillMask) -> None:
    far = "a " * MAX_TOKENS + "[MASK]"
    assert refusal(filler, "no mask") == ("no_mask", "/inputs", None)
    assert refusal(filler, ["a [MASK]", "[mask] <mask>"]) == ("no_mask", "/inputs/1", None)
    assert refusal(filler, "[MASK] " * 65) == ("too_many_masks", "/inputs", fill_mask.MAX_MASKS)
    assert refusal(filler, far) == ("input_too_long", "/inputs", MAX_TOKENS)
    assert refusal(filler, ["[MASK]", f"[MASK] {far}"]) == ("input_too_long", "/inputs/1", MAX_TOKENS)
    assert refusal(filler, "a " * 100_000 + "[MASK]") == ("input_too_long", "/inputs", MAX_TOKENS)
    assert refusal(filler, "[MASK] " + "a " * 99, truncation=False) == ("input_too_long", "/inputs", MAX_TOKENS)
    assert refusal(filler, "[MASK]", targets=["", ""]) == ("validation_failed", "/parameters/targets", None)
    assert len(encode(filler, "[MASK] " + "a " * 99)[0].input_ids) == MAX_TOKENS


def test_a_tokenizer_without_a_mask_cannot_fill_masks(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    with pytest.raises(ValueError, match="mask"):
        fill_mask.create(Tokenizer.from_directory(tmp_path), manifest("fill-mask", 5))
