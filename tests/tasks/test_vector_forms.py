"""Forms of an embedding: what requests ask for, what they get, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from swiftlet_models.artifact import Embedding, MultiVector, Sparse
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import evaluation
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.inference.pipeline import check_size
from swiftlet_serve.repository.agreement import compare
from swiftlet_serve.tasks import embed, rerank, zero_shot
from swiftlet_serve.tasks._forms import answer_fields
from swiftlet_serve.tasks._vector_forms import Sparse as Weights
from swiftlet_serve.tasks._vector_forms import dot, max_sim, similarity
from swiftlet_serve.types import json_text
from tests.support.task_requests import encode, manifest, rejection

DENSE, SEVERAL = 4, 2
M3 = Embedding("cls", sparse=Sparse("tokens", 0, (1, 2)), multi_vector=MultiVector(SEVERAL, first=1))


def make(tokenizer: Tokenizer, about: Embedding, module: Any = embed) -> Any:
    width = 9 if about.by_vocabulary else (DENSE if about.vector else 0) + (about.sparse is not None) + SEVERAL
    task = {embed: "embed", rerank: "rerank", zero_shot: "zero-shot"}[module]
    return module.create(tokenizer, replace(manifest("embed", width), task=task, embedding=about))


def answer(task: Any, row: np.ndarray, inputs: str = "a film", **parameters: Any) -> Any:
    request = task.Request.model_validate({"inputs": inputs, "parameters": parameters})
    encodings = task.encode(request)
    answers = task.decode(request, encodings, [row[: len(one.focus)].astype(np.float32) for one in encodings])
    return received(answers)[0]


def received(answer: object) -> Any:
    """Returns an answer as a client reads it."""
    return json.loads(json_text.write(answer))


def test_splade_weighs_the_vocabulary(tokenizer: Tokenizer) -> None:
    task, row = make(tokenizer, Embedding("max", vector=False, sparse=Sparse("vocabulary"))), np.zeros((1, 9))
    row[0, [3, 7]], row[0, 5] = (1, 2), -4

    vector = answer(task, row, return_tokens=True)
    assert vector["indices"] == [3, 7]
    assert vector["values"] == pytest.approx([math.log(2), math.log(3)])
    assert vector["tokens"] == [tokenizer.token(3), tokenizer.token(7)]
    twice = make(tokenizer, replace(task.embedding, sparse=Sparse("vocabulary", 2)))
    assert answer(twice, row)["values"] == pytest.approx([math.log1p(math.log(2)), math.log1p(math.log(3))])
    assert answer(task, -np.ones((1, 9))) == {"indices": [], "values": []}
    with pytest.raises(ValueError, match="dense vector"):
        make(tokenizer, task.embedding, zero_shot)


def test_one_pass_gives_all_forms(tokenizer: Tokenizer) -> None:
    task = make(tokenizer, M3)
    (one,) = encode(task, "film a film", output=["sparse", "dense", "multi_vector"])
    assert one.focus.tolist() == list(range(len(one.input_ids)))
    row = np.arange(len(one.focus) * (DENSE + 1 + SEVERAL), dtype=np.float32).reshape(len(one.focus), -1)

    forms = answer(task, row, "film a film", output=["sparse", "dense", "multi_vector"], normalize=False)
    assert list(forms) == ["sparse", "dense", "multi_vector"]
    for output, refused in (("multi_vector", {"encoding_format": "int8"}), ("sparse", {"encoding_format": "ubinary"})):
        assert rejection(task, "film", output=output, normalize=False, **refused)[0] == "validation_failed"
    assert forms["dense"] == row[0, :DENSE].tolist()
    assert forms["multi_vector"] == row[1:, DENSE + 1 :].tolist()
    largest: dict[int, float] = {}
    for token, weight in zip(one.input_ids.tolist(), row[:, DENSE].tolist(), strict=True):
        largest[token] = max(weight, largest.get(token, 0))
    kept = {token: weight for token, weight in sorted(largest.items()) if weight > 0 and token not in (1, 2)}
    assert (forms["sparse"]["indices"], forms["sparse"]["values"]) == (list(kept), list(kept.values()))
    assert answer(task, row, "film a film", output="dense", normalize=False) == forms["dense"]
    assert len(encode(task, "a film")[0].focus) == 1  # a dense vector needs no other token
    lengths = np.linalg.norm(answer(task, row, "film a film", output="multi_vector", normalize=True), axis=1)
    assert lengths == pytest.approx(1)


def test_colbert_reads_queries_and_documents_differently(tokenizer: Tokenizer) -> None:
    (full_stop,) = encode(make(tokenizer, M3), "a .", output="multi_vector")[0].input_ids[2:3].tolist()
    several = MultiVector(SEVERAL, {"query": 7, "document": 8}, 12, 6, mask=4, reads_masks=False, ignored=(full_stop,))
    about = Embedding("cls", normalize=True, prompts={"query": "", "document": ""}, vector=False, multi_vector=several)
    task = make(tokenizer, about)
    (query,) = encode(task, "a .", prompt_name="query")
    (document,) = encode(task, "a .")

    assert query.input_ids[1] == 7
    assert document.input_ids[1] == 8
    assert len(query.input_ids) == 12
    assert query.input_ids[query.attended :].tolist() == [4] * (12 - query.attended)
    assert len(query.focus) == 12
    assert full_stop not in document.input_ids[document.focus]
    assert document.attended is None
    (long,) = encode(task, "a film " * 40)
    assert len(long.input_ids) == 6
    assert long.left_out
    assert rejection(task, "a film " * 40, truncation=False) == ("input_too_long", "/inputs", 5)

    ranked = make(tokenizer, about, rerank)
    request = ranked.Request.model_validate({"inputs": {"query": "a", "texts": ["film", "a film"]}})
    encodings = ranked.encode(request)
    assert [one.input_ids[1] for one in encodings] == [7, 8, 8]
    rows = [np.eye(SEVERAL, dtype=np.float32)[np.arange(len(one.focus)) % SEVERAL] for one in encodings]
    rows[1][:] = (1, 0)  # the first text lacks half of what the query has
    assert [(text["index"], text["score"]) for text in ranked.decode(request, encodings, rows)] == [(1, 12), (0, 6)]


def test_what_a_model_lacks_is_refused(tokenizer: Tokenizer) -> None:
    code, task = "validation_failed", make(tokenizer, M3)
    plain = make(tokenizer, replace(M3, sparse=None, multi_vector=None))
    assert rejection(plain, "a", output="sparse") == (code, "/parameters/output", None)
    assert rejection(plain, "a", output=["dense", "multi_vector"]) == (code, "/parameters/output", None)
    assert rejection(task, "a", output=["dense", "dense"]) == (code, "/parameters/output", None)
    assert rejection(task, "a", output="sparse", dimensions=2) == (code, "/parameters/dimensions", None)
    assert rejection(task, "a", output="sparse", encoding_format="base64")[1] == "/parameters/encoding_format"
    for invalid in ([], "colbert", ["dense"] * 4, 3):
        with pytest.raises(ValueError, match="output"):
            encode(task, "a", output=invalid)
    classifier = rerank.create(tokenizer, manifest("rerank", 1, ("relevant",), "single_label"))
    candidates = {"query": "a", "texts": ["b"]}
    assert rejection(classifier, candidates, output="dense") == (code, "/parameters/output", None)
    assert rejection(make(tokenizer, replace(M3, sparse=None), rerank), candidates, output="sparse")[0] == code
    (one,) = encode(task, "a film", output="multi_vector")
    with pytest.raises(Unprocessable, match="vectors"):
        check_size(task, [replace(one, focus=np.arange(task.max_positions + 1))], 1 << 40)


def test_forms_are_compared_by_what_they_mean(tokenizer: Tokenizer) -> None:
    a, b = Weights(np.array([1, 5]), np.array([1.0, 2.0])), Weights(np.array([5, 9]), np.array([3.0, 1.0]))
    assert dot(a, b) == 6
    assert similarity(a, a) == pytest.approx(1)
    nothing = Weights(np.zeros(0, np.int64), np.zeros(0))
    assert similarity(nothing, nothing) == 1
    assert similarity(a, nothing) == 0
    assert max_sim(np.eye(2), np.zeros((0, 2))) == 0

    served = {"indices": [1, 5], "values": [1.0, 2.0]}
    assert compare([served], [served | {"values": [1.01, 2.0]}], several=True).agrees
    assert not compare([served], [{"indices": [9], "values": [1.0]}], several=True).agrees
    evaluator = evaluation.create("embed", make(tokenizer, M3))
    assert evaluator.golden_bodies()[0]["parameters"] == {"output": ["dense", "sparse", "multi_vector"]}
    answers = [[served], [{"indices": [2], "values": [1.0]}], [{"indices": [2, 3], "values": [1.0, 0.1]}]]
    assert evaluator.agreement(answers, answers).value == 100


def test_vectors_of_zeros_are_equal() -> None:
    """A static model has them for a text of unknown words, in int8 as in fp32."""
    zeros, other = np.zeros(3), np.array([0.0, 2.0, 0.0])
    assert (similarity(zeros, zeros), similarity(zeros, other), similarity(other, other)) == (1, 0, 1)


def test_bulk_and_tensors_know_the_vector() -> None:
    assert answer_fields(embed.Embed.Response) == {"embedding": float}


def test_windows_become_the_largest_weights_and_all_vectors(tokenizer: Tokenizer) -> None:
    """Each form of a long text, made of the forms of its windows, which are texts of their own here."""
    task = make(tokenizer, M3)
    width, draw = DENSE + 1 + SEVERAL, np.random.default_rng(0)
    table = draw.normal(size=(tokenizer.vocab_size, width))
    options = {"output": ["dense", "sparse", "multi_vector"], "normalize": False, "truncation": "window"}
    request = task.Request.model_validate({"inputs": "a film " * 60, "parameters": options})
    windows = task.encode(request)
    rows = [table[one.input_ids[one.focus]].astype(np.float32) for one in windows]
    (found,) = received(task.decode(request, windows, rows))
    alone = [received(task.decode(request, [one], [row]))[0] for one, row in zip(windows, rows, strict=True)]

    assert len(windows) > 2
    lengths = [len(one.input_ids) for one in windows]
    assert found["dense"] == pytest.approx(np.average([one["dense"] for one in alone], 0, lengths))
    assert found["multi_vector"] == [vector for one in alone for vector in one["multi_vector"]]
    weights: dict[int, float] = {}
    for one in alone:
        for token, weight in zip(one["sparse"]["indices"], one["sparse"]["values"], strict=True):
            weights[token] = max(weight, weights.get(token, 0))
    assert dict(zip(found["sparse"]["indices"], found["sparse"]["values"], strict=True)) == weights


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({"encoding_format": "int8", "normalize": False, "output": "multi_vector"}, "/parameters/encoding_format"),
        ({"encoding_format": "binary", "normalize": True, "output": "multi_vector"}, "/parameters/encoding_format"),
        ({"encoding_format": "int8", "output": ["multi_vector", "sparse"]}, "/parameters/encoding_format"),
    ],
)
def test_formats_that_a_form_cannot_have_are_refused(
    parameters: dict[str, Any], place: str, tokenizer: Tokenizer
) -> None:
    assert rejection(make(tokenizer, M3), "a film", **parameters)[:2] == ("validation_failed", place)
