"""Embedding: valid and invalid requests, and their answers. `test_sentence_transformers.py` compares the vectors."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from swiftlet_models.artifact import Embedding
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import evaluation
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.tasks import embed
from swiftlet_serve.tasks._requests import MAX_INPUTS
from swiftlet_serve.types import json_text
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
    rows = [ROW] * (len(inputs) if isinstance(inputs, list) else 1)
    return received(task.decode(request, task.encode(request), rows))


def received(answer: object) -> Any:
    """Returns an answer as a client reads it."""
    return json.loads(json_text.write(answer))


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


def test_embed_writes_vectors_in_fewer_bits(tokenizer: Tokenizer) -> None:
    signs = [[3.0, -4.0, 0.0, 12.0, 0.0, 0.0, 0.0, 0.0]]
    wide = embed.create(tokenizer, replace(manifest("embed", 8), embedding=Embedding("mean", normalize=True)))

    def written(encoding: str, **parameters: object) -> Any:
        request = wide.Request.model_validate({"inputs": "a", "parameters": {"encoding_format": encoding} | parameters})
        return received(wide.decode(request, wide.encode(request), [np.array(signs, np.float32)]))

    assert written("int8") == [[29, -39, 0, 117, 0, 0, 0, 0]]
    assert written("uint8", dimensions=2) == [[128 + 76, 128 - 102]]
    assert written("ubinary") == [[0b10010000]]
    assert written("binary", normalize=False) == [[0b10010000 - 128]]


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
    encoding = "/parameters/encoding_format"
    assert rejection(embedder, "a", encoding_format="int8", normalize=False) == (code, encoding, None)
    assert rejection(embedder, "a", encoding_format="ubinary") == (code, encoding, None)
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


def ids_of(task: embed.Embed, inputs: Any, **fields: Any) -> list[list[int]]:
    request = embed.TokenIdsRequest.model_validate_json(json.dumps({"inputs": inputs, **fields}))
    return [one.input_ids.tolist() for one in task.encode(request)]


@pytest.fixture(scope="module")
def reader(tokenizer: Tokenizer) -> embed.Embed:
    """A task whose network has the whole vocabulary."""
    about = replace(manifest("embed", WIDTH), vocab_size=tokenizer.vocab_size)
    return embed.create(tokenizer, replace(about, embedding=Embedding("mean", normalize=True, prompts=PROMPTS)))


def test_token_ids_are_read_exactly(reader: embed.Embed) -> None:
    tokenizer = reader.tokenizer
    (before,), (after,) = tokenizer.special_ends
    (whole,) = [one.input_ids.tolist() for one in encode(reader, ["playing films"])]
    text = whole[1:-1]
    inside = list(reversed(text))  # begins with a token that continues a word
    odd = [tokenizer.unknown_id, after, text[0], before, text[0]]

    assert ids_of(reader, text) == ids_of(reader, [text]) == [whole]
    assert ids_of(reader, whole) == [whole]
    assert ids_of(reader, [text, inside, odd]) == [[before, *ids, after] for ids in (text, inside, odd)]
    assert ids_of(reader, [whole, inside, odd], whole=True) == [whole, inside, odd]
    (encoding,) = reader.encode(embed.TokenIdsRequest(inputs=text))
    (expected,) = encode(reader, ["playing films"])
    assert np.array_equal(encoding.token_type_ids, expected.token_type_ids)
    assert np.array_equal(encoding.focus, expected.focus)


def test_long_rows_of_token_ids_are_refused_or_cut(reader: embed.Embed) -> None:
    (before,), (after,) = reader.tokenizer.special_ends
    token = encode(reader, "a")[0].input_ids.tolist()[1]
    long = [token] * MAX_TOKENS

    assert ids_of(reader, long) == [[before, *long[2:], after]]
    assert ids_of(reader, [before, *long, after], whole=True) == [[before, *long[2:], after]]
    assert ids_of(reader, long, whole=True, parameters={"truncation": False}) == [long]
    with pytest.raises(Unprocessable, match="truncation") as caught:
        ids_of(reader, [[token], long], parameters={"truncation": False})
    assert caught.value.field_errors[0].pointer == "/inputs/1"


def test_ids_that_are_no_tokens_of_a_text_are_refused(reader: embed.Embed, tokenizer: Tokenizer) -> None:
    (before,), (after,) = tokenizer.special_ends
    token = encode(reader, "a")[0].input_ids.tolist()[1]

    def fault(inputs: Any, **parameters: Any) -> tuple[str, str]:
        with pytest.raises(Unprocessable) as caught:
            ids_of(reader, inputs, parameters=parameters)
        (found,) = caught.value.field_errors
        return found.code, found.pointer

    assert fault([[token], [token, tokenizer.vocab_size]]) == ("unknown_token", "/inputs/1/1")
    assert fault([token, tokenizer.pad_id]) == ("unknown_token", "/inputs/1")
    assert fault([[token], []]) == ("empty_input", "/inputs/1")
    assert fault([before, after]) == ("empty_input", "/inputs")
    assert fault([token], prompt_name="query") == ("unsupported", "/inputs")
    with pytest.raises(Unprocessable, match="vocabulary"):  # of a network with fewer tokens than the tokenizer
        ids_of(make(tokenizer), [tokenizer.vocab_size - 1])


@pytest.mark.parametrize(
    ("inputs", "parameters"),
    [
        ({"text": "a"}, {}),
        ([], {}),
        (["a"] * (MAX_INPUTS + 1), {}),
        ("a", {"dimensions": 0}),
        ("a", {"dimensions": 2.0}),
        ("a", {"encoding_format": "int4"}),
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
    answer = embedder.decode(parts[0], embedder.encode(parts[0]), [ROW])
    assert received(embedder.single(answer)) == [0.6, 0.8]


def test_create_rejects_an_artifact_without_pooling(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="embed needs a network with the head embedding"):
        embed.create(tokenizer, manifest("embed", WIDTH))
    with pytest.raises(ValueError, match="a model for embed has no labels"):
        embed.create(tokenizer, manifest("embed", 3, LABELS))


def test_evaluator_computes_spearman_and_cosine(embedder: embed.Embed, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    data.write_text('sentence1,sentence2,score\n"a, b",c,1\nd,e,2.5\nf,g,4\n', "utf-8")
    evaluator = evaluation.create("embed", embedder)
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
