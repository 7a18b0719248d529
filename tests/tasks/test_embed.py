"""Embedding: valid and invalid requests, and their answers. `test_sentence_transformers.py` compares the vectors."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from swiftlet_serve.models.artifact import Embedding
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service.errors import Unprocessable
from swiftlet_serve.service.tasks import MAX_INPUTS, embed
from tests.support.task_requests import LABELS, MAX_TOKENS, encode, manifest, rejection

WIDTH = 4
PROMPTS = {"query": "find ", "none": ""}
ROW = np.array([[3.0, 4.0, 0.0, 12.0]], np.float32)


@pytest.fixture(scope="module")
def embedder(tokenizer: Tokenizer) -> embed.Embed:
    return make(tokenizer)


def make(tokenizer: Tokenizer, **settings: Any) -> embed.Embed:
    about = Embedding("mean", normalize=True, prompts=PROMPTS)
    return embed.create(tokenizer, replace(manifest("embed", WIDTH), embedding=replace(about, **settings)))


def decode(task: embed.Embed, inputs: object = "a", **parameters: object) -> Any:
    request = task.Request.model_validate({"inputs": inputs, "parameters": parameters})
    return task.decode(request, task.encode(request), [ROW] * (len(inputs) if isinstance(inputs, list) else 1))


def test_embed_returns_a_list_of_vectors_for_one_text_and_for_several(embedder: embed.Embed) -> None:
    vector = [round(float(x) / 13, 8) for x in ROW[0]]
    assert decode(embedder) == [vector]
    assert decode(embedder, ["a", "b"]) == [vector, vector]


def test_embed_normalizes_as_the_model_or_the_request_defines(tokenizer: Tokenizer) -> None:
    raw = make(tokenizer, normalize=False)
    assert decode(raw) == ROW.tolist()
    assert decode(raw, normalize=True) == decode(make(tokenizer))
    assert decode(make(tokenizer), normalize=False) == ROW.tolist()


def test_embed_cuts_before_it_normalizes(embedder: embed.Embed) -> None:
    assert decode(embedder, dimensions=2) == [[0.6, 0.8]]
    assert decode(embedder, dimensions=2, normalize=False) == [[3.0, 4.0]]
    assert len(decode(embedder, dimensions=WIDTH)[0]) == WIDTH


def test_embed_encodes_little_endian_floats(embedder: embed.Embed) -> None:
    (text,) = decode(embedder, encoding_format="base64", normalize=False)
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == ROW[0].tolist()


@given(row=hnp.arrays(np.float32, (1, WIDTH), elements=st.floats(-1e6, 1e6, width=32)))
def test_normalized_vectors_are_finite(row: Any) -> None:
    with np.errstate(all="raise", under="ignore"):
        length = float(np.linalg.norm(embed.normalized(row[0].astype(np.float64))))
    assert length == pytest.approx(1) or (length < 1 and np.abs(row).max() <= 1e-12)


def test_embed_puts_the_prompt_in_front_of_each_text(tokenizer: Tokenizer) -> None:
    plain, with_default = make(tokenizer), make(tokenizer, default_prompt="query")
    prompted = [one.input_ids.tolist() for one in encode(plain, ["find a film"] * 2)]

    assert [one.input_ids.tolist() for one in encode(plain, ["a film"] * 2, prompt_name="query")] == prompted
    assert [one.input_ids.tolist() for one in encode(with_default, ["a film"] * 2)] == prompted
    (unprompted,) = encode(with_default, "a film", prompt_name="none")
    assert unprompted.input_ids.tolist() != prompted[0]


def test_embed_rejects_what_the_model_does_not_have(embedder: embed.Embed, tokenizer: Tokenizer) -> None:
    code = "validation_failed"
    assert rejection(embedder, "a", prompt_name="secret") == (code, "/parameters/prompt_name", None)
    assert rejection(embedder, "a", dimensions=WIDTH + 1) == (code, "/parameters/dimensions", WIDTH)
    with pytest.raises(Unprocessable) as caught:
        encode(embedder, "a", prompt_name="secret")
    assert caught.value.detail == "The model has no prompt of this name. Its prompts are query, none."
    with pytest.raises(Unprocessable, match="It has no prompts"):
        encode(make(tokenizer, prompts={}), "a", prompt_name="secret")


def test_embed_rejects_empty_and_long_texts(embedder: embed.Embed) -> None:
    long = "a " * MAX_TOKENS
    assert rejection(embedder, "") == ("empty_input", "/inputs", None)
    assert rejection(embedder, " \t", prompt_name="query") == ("empty_input", "/inputs", None)
    assert rejection(embedder, ["a", " \n\u3000"]) == ("empty_input", "/inputs/1", None)
    assert rejection(embedder, ["a", long], truncation=False) == ("input_too_long", "/inputs/1", MAX_TOKENS)
    assert len(encode(embedder, long)[0].input_ids) == MAX_TOKENS


@pytest.mark.parametrize(
    ("inputs", "parameters"),
    [
        ({"text": "a"}, {}),
        ([], {}),
        (["a"] * (MAX_INPUTS + 1), {}),
        ("a", {"dimensions": 0}),
        ("a", {"dimensions": 2.0}),
        ("a", {"encoding_format": "int8"}),
        ("a", {"normalize": 1}),
        ("a", {"top_k": 1}),
    ],
)
def test_embed_rejects_unknown_fields_and_values(embedder: embed.Embed, inputs: Any, parameters: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        embedder.Request.model_validate({"inputs": inputs, "parameters": parameters})


def test_embed_splits_a_request_into_its_texts(embedder: embed.Embed) -> None:
    request = embedder.Request.model_validate({"inputs": ["a", "b"], "parameters": {"dimensions": 2}})
    parts = embedder.split(request)

    assert [one.inputs for one in parts] == ["a", "b"]
    assert embedder.single(embedder.decode(parts[0], [], [ROW])) == [0.6, 0.8]


def test_create_rejects_an_artifact_without_pooling(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="embed needs a network with the head embedding"):
        embed.create(tokenizer, manifest("embed", WIDTH))
    with pytest.raises(ValueError, match="a model for embed has no labels"):
        embed.create(tokenizer, manifest("embed", 3, LABELS))


def test_evaluator_computes_spearman_and_cosine(embedder: embed.Embed, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    data.write_text('sentence1,sentence2,score\n"a, b",c,1\nd,e,2.5\nf,g,4\n', "utf-8")
    evaluator = embed.Evaluator(embedder)
    cases = list(evaluator.cases(data, 0, None))
    angles = (1.2, 0.6, 0.1)
    responses = [[[1.0, 0.0], [float(np.cos(angle)), float(np.sin(angle))]] for angle in angles]
    grades = evaluator.grades(cases, responses)

    assert [case.body["inputs"] for case in cases] == [["a, b", "c"], ["d", "e"], ["f", "g"]]
    assert np.mean([grade.scores["spearman"] for grade in grades]) == pytest.approx(1)
    reversed_grades = evaluator.grades(cases, responses[::-1])
    assert np.mean([grade.scores["spearman"] for grade in reversed_grades]) == pytest.approx(-1)
    assert evaluator.agree(grades[0].answer, grades[0].answer) == pytest.approx(1)
    assert evaluator.agree(grades[0].answer, grades[1].answer) == pytest.approx((1 + np.cos(0.6)) / 2)
