"""Requests of all tasks: validation, examples and descriptions."""

from __future__ import annotations

import json
import sys
import tracemalloc
from typing import Any
from unicodedata import category

import numpy as np
import pytest
from pydantic import ValidationError

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.tasks._requests import MAX_INPUTS, VISIBLE, characters, is_blank
from swiftlet_serve.types import Batch


def test_request_examples_can_be_answered(classifier: Any, answerer: Any, filler: Any, tokenizer: Tokenizer) -> None:
    for task, width in ((classifier, 3), (answerer, 2), (filler, tokenizer.vocab_size)):
        (example,) = task.Request.model_json_schema()["examples"]
        request = task.Request.model_validate(example)
        encodings = task.encode(request)
        batch = Batch.of(encodings)
        rows = batch.split_rows(np.zeros((len(batch.focus), width), np.float32))
        assert json.loads(json.dumps(task.decode(request, encodings, rows)))


def test_request_fields_have_descriptions(classifier: Any, answerer: Any, filler: Any) -> None:
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
def test_request_rejects_unknown_fields_and_values(
    body: dict[str, Any], classifier: Any, answerer: Any, filler: Any
) -> None:
    for task in (classifier, answerer, filler):
        with pytest.raises(ValidationError):
            task.Request.model_validate_json(json.dumps(body))


def test_request_parsing_keeps_no_texts(classifier: Any, answerer: Any, filler: Any) -> None:
    """By default, pydantic would keep about a megabyte of users' texts."""

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


def test_request_accepts_hugging_face_options(classifier: Any) -> None:
    for body in (
        {"inputs": "a", "parameters": {}},
        {"inputs": "a", "parameters": None, "model": "m"},
        {"inputs": ["a", {"text": "a", "text_pair": "b"}], "options": {"use_cache": False, "wait_for_model": True}},
    ):
        assert classifier.encode(classifier.Request.model_validate_json(json.dumps(body)))


def test_spaces_controls_and_formats_are_blank_and_all_other_characters_are_not() -> None:
    known = [c for c in map(chr, range(sys.maxunicode + 1)) if category(c) != "Cn"]
    blank = [c for c in known if c.isspace() or category(c) in {"Cc", "Cf"}]
    assert is_blank("".join(blank))
    assert VISIBLE.findall("".join(known)) == [c for c in known if not (c.isspace() or category(c) in {"Cc", "Cf"})]


@pytest.mark.parametrize("invisible", ["\n", "\x00", "\u200b", " \u200b", "\u200b\U000e0001"])
@pytest.mark.parametrize("count", [0, 1, 64, 5000])
def test_text_of_invisible_characters_is_blank_whatever_its_length(invisible: str, count: int) -> None:
    assert is_blank(invisible * count)
    for visible in ("a", "서", "🎬"):
        assert not is_blank(invisible * count + visible)
        assert not is_blank(invisible * count + visible + invisible)


@pytest.mark.parametrize(
    ("inputs", "count"),
    [
        ("한국", 2),
        (["a", "👩‍👧", ""], 4),
        ([7, 8, 9], 3),
        ([[7, 8], [9]], 3),
        (["a", ["bc"], 5], 4),
        ([], 0),
        (None, 0),
    ],
)
def test_characters_of_inputs_are_counted(inputs: object, count: int) -> None:
    assert characters(inputs) == count
