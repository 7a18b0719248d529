"""Question answering: valid and invalid requests, and their answers. `test_pipeline_parity.py` compares the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from swiftlet_serve.tasks import qa
from tests.goldens import cases
from tests.support.task_requests import MAX_TOKENS, encode, rejection


def reference_spans(starts: Any, ends: Any, most: int, longest: int) -> list[tuple[int, int, float]]:
    """Returns the spans of `decode_spans` of transformers 4.57.1, without the invalid ones."""
    spans = [
        (first, last, starts[first] * ends[last])
        for first in range(len(starts))
        for last in range(first, min(first + longest, len(starts)))
    ]
    return sorted(spans, key=lambda span: -span[2])[:most]


@given(data=st.data(), count=st.integers(1, 12), most=st.integers(1, 80), longest=st.integers(1, 15))
def test_best_spans_equal_reference(data: st.DataObject, count: int, most: int, longest: int) -> None:
    probabilities = hnp.arrays(np.float64, count, elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
    starts, ends = data.draw(probabilities), data.draw(probabilities)
    assert list(qa.best_spans(starts, ends, most, longest)) == reference_spans(starts, ends, most, longest)


@given(
    context=st.text(alphabet=st.characters(codec="utf-8"), min_size=1), seed=st.integers(0, 9), aligned=st.booleans()
)
def test_qa_answers_are_slices_of_the_context(answerer: qa.Qa, context: str, seed: int, aligned: bool) -> None:
    parameters = {"top_k": 20, "align_to_words": aligned, "max_seq_len": 16, "doc_stride": 2}
    inputs = {"question": "Who?", "context": context}
    request = qa.QaRequest.model_validate({"inputs": inputs, "parameters": parameters})
    if not context.strip() or not len(answerer.tokenizer.tokenize([context])[0]):
        assert rejection(answerer, inputs) == ("empty_input", "/inputs/context", None)
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
    """Returns logits that are certain of one span of the context."""
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


def test_qa_finds_answer_in_long_context(answerer: qa.Qa) -> None:
    context = " ".join([*cases.SENTENCES, "👨‍👩‍👧 é 한국 The answer is forty-two here.", *cases.SENTENCES[:9]])
    request = qa.QaRequest.model_validate({"inputs": {"question": "What is it?", "context": context}})
    windows = answerer.encode(request)
    assert len(windows) > 20
    assert all(len(window.input_ids) <= MAX_TOKENS for window in windows)
    answer = answerer.decode(request, windows, point_at(windows, context, "forty-two"))
    assert isinstance(answer, dict)
    assert answer["answer"].strip() == "forty-two"
    assert answer["score"] > 0.99


def test_qa_returns_empty_answer_to_impossible_question(answerer: qa.Qa) -> None:
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
def test_qa_accepts_one_or_several_questions(answerer: qa.Qa, inputs: object, count: int | None) -> None:
    request = qa.QaRequest.model_validate({"inputs": inputs})
    windows = answerer.encode(request)
    rows = [np.zeros((len(window.focus), 2), np.float32) for window in windows]
    found = answerer.decode(request, windows, rows)
    assert isinstance(found, dict) if count is None else len(found) == count  # type: ignore[arg-type]


def test_qa_rejects_invalid_requests(answerer: qa.Qa) -> None:
    good = {"question": "a", "context": "b"}
    long = "a " * MAX_TOKENS
    assert rejection(answerer, good | {"question": ""}) == ("empty_input", "/inputs/question", None)
    assert rejection(answerer, [good, good | {"context": " "}]) == ("empty_input", "/inputs/1/context", None)
    assert rejection(answerer, {"question": ["a", ""], "context": "b"}) == ("empty_input", "/inputs/question/1", None)
    assert rejection(answerer, {"question": ["a"], "context": ["b", "c"]}) == (
        "validation_failed",
        "/inputs/context",
        1,
    )
    code, pointer, limit = rejection(answerer, good | {"question": long})
    assert (code, pointer) == ("input_too_long", "/inputs/question")
    assert limit == MAX_TOKENS - 4
    code, pointer, _ = rejection(answerer, good | {"question": "x " * 100_000})
    assert (code, pointer) == ("input_too_long", "/inputs/question")
    code, pointer, limit = rejection(answerer, good | {"context": "a " * qa.MAX_CHARACTERS})
    assert (code, pointer, limit) == ("input_too_long", "/inputs/context", qa.MAX_CHARACTERS)
    code, pointer, limit = rejection(answerer, good | {"context": "a " * 60 * qa.MAX_WINDOWS})
    assert (code, pointer, limit) == ("input_too_long", "/inputs/context", qa.MAX_WINDOWS)
    too_many = MAX_TOKENS + 1
    failed = "validation_failed"
    assert rejection(answerer, good, max_seq_len=too_many) == (failed, "/parameters/max_seq_len", MAX_TOKENS)
    assert rejection(answerer, good, doc_stride=too_many) == (failed, "/parameters/doc_stride", MAX_TOKENS)
    code, pointer, _ = rejection(answerer, good | {"context": long}, doc_stride=MAX_TOKENS - 1)
    assert (code, pointer) == (failed, "/parameters/doc_stride")


@pytest.mark.parametrize("blanks", [" " * 18_000, "\u200b\n" * 9000])
def test_qa_reads_texts_after_any_number_of_blanks(answerer: qa.Qa, blanks: str) -> None:
    found, wanted = (
        answerer.encode(qa.QaRequest(inputs=qa.Sample(question=start + "Who?", context=start + "Clara is a baker.")))
        for start in (blanks, "")
    )
    assert [window.input_ids.tolist() for window in found] == [window.input_ids.tolist() for window in wanted]


def test_qa_limits_total_characters_before_tokenising(answerer: qa.Qa, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: object) -> None:
        raise AssertionError("was tokenised")

    monkeypatch.setattr(answerer.tokenizer, "tokenize", read)
    samples = [{"question": "a", "context": f"{i} " * 10_000} for i in range(40)]
    code, pointer, limit = rejection(answerer, samples)
    assert (code, limit) == ("input_too_long", qa.MAX_CHARACTERS)
    assert pointer.endswith("/context")


def test_qa_shares_context_between_questions(answerer: qa.Qa) -> None:
    context = " ".join(cases.SENTENCES[:9])
    windows = encode(answerer, {"question": [f"{i}?" for i in range(3)], "context": context})
    assert {window.question_index for window in windows} == {0, 1, 2}
