"""Reranking: parity with CrossEncoder and with the cosine of embeddings, requests and their errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from sentence_transformers import CrossEncoder
from torch import nn

from swiftlet_models.artifact import Artifact
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.sentence_transformers import cross_encoder_problem
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import evaluation
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.tasks import rerank
from tests.support import embedding_parity, native_kernels
from tests.support.sentence_checkpoints import edit, save_encoder, save_transformer
from tests.support.task_requests import MAX_TOKENS, manifest, rejection
from tests.support.tiers import first

SIGMOID, IDENTITY = nn.Sigmoid(), nn.Identity()
QUERY = "A warm film?"
POSITIONS = 64  # of the small network
TEXTS = ["It was warm.", "서울의 봄은 짧다.", "emoji 😀 only", "long words " * 60, "no"]


def imported(source: Path, out: Path) -> Artifact:
    artifact, _ = import_checkpoint(
        str(source), "rerank", out, name="model", precision="fp32", max_loss=0.5, report=lambda _: None
    )
    return artifact


def answers(source: Path, out: Path, *parameters: dict[str, Any]) -> list[Any]:
    artifact = imported(source, out)
    bodies = [{"inputs": {"query": QUERY, "texts": TEXTS}, "parameters": one} for one in parameters]
    return respond(load_model(artifact.path, "onnx_cpu"), bodies)


@pytest.mark.parametrize("activation", first([None, SIGMOID, IDENTITY], None, SIGMOID))
def test_scores_equal_those_of_a_cross_encoder(activation: Any, tmp_path: Path) -> None:
    source = save_transformer(tmp_path / "model", labels=1)
    model = CrossEncoder(str(source), device="cpu", activation_fn=activation)
    if activation is not None:
        model.save(str(source))
        model = CrossEncoder(str(source), device="cpu")
    ranked, raw = answers(source, tmp_path / "out", {"return_documents": True}, {"raw_scores": True, "top_n": 2})
    expected = model.rank(QUERY, TEXTS, return_documents=True)

    assert [(one["index"], one["text"]) for one in ranked] == [(one["corpus_id"], one["text"]) for one in expected]
    assert [one["score"] for one in ranked] == pytest.approx([float(one["score"]) for one in expected], abs=1e-5)
    logits = model.predict([(QUERY, text) for text in TEXTS], activation_fn=nn.Identity())
    assert [one["score"] for one in raw] == pytest.approx(sorted(logits.tolist(), reverse=True)[:2], abs=1e-5)


@pytest.mark.parametrize("engine", first(["onnx_cpu", "torch"], "onnx_cpu"))
@pytest.mark.parametrize("activation", first([SIGMOID, IDENTITY], SIGMOID))
def test_ranks_of_many_queries_equal_those_of_a_cross_encoder(engine: str, activation: Any, tmp_path: Path) -> None:
    """Special tokens in a text are text on both sides. CrossEncoder sorts stably too, but its batches are padded."""
    source = save_transformer(tmp_path / "model", labels=1)
    model = CrossEncoder(str(source), device="cpu", activation_fn=activation, max_length=POSITIONS)
    model.save(str(source))
    model.tokenizer.split_special_tokens = True
    texts = [text for text in embedding_parity.texts() if text.strip()]
    queries = [texts[i] for i in range(0, 20, 2)]
    candidates = [texts[50 * i : 50 * i + 50] for i in range(len(queries))]
    loaded = load_model(imported(source, tmp_path / "out").path, engine)
    responses = respond(
        loaded,
        [
            {"inputs": {"query": query, "texts": few}, "parameters": {"top_n": 1 + i % 50}}
            for i, (query, few) in enumerate(zip(queries, candidates, strict=True))
        ],
    )

    for i, (query, few, found) in enumerate(zip(queries, candidates, responses, strict=True)):
        scores = model.predict([(query, text) for text in few])
        assert [one["score"] for one in found] == pytest.approx(
            sorted(scores.tolist(), reverse=True)[: 1 + i % 50], abs=1e-5
        )
        assert [scores[one["index"]] for one in found] == pytest.approx([one["score"] for one in found], abs=1e-5)


@pytest.mark.exhaustive
def test_a_thousand_texts_get_the_scores_that_each_gets_alone(tmp_path: Path) -> None:
    """In int8, to the bit. Equal texts have equal scores, and keep the order of the request."""
    native_kernels.best()
    source = save_transformer(tmp_path / "model", labels=1, hidden_size=64, num_attention_heads=4)
    artifact, _ = import_checkpoint(
        str(source), "rerank", tmp_path / "out", name="model", max_loss=0.5, report=lambda _: None
    )
    different = [text[:60] for text in embedding_parity.texts() if text[:60].strip()][:333]
    texts = [*different, *different, *different, "last"]
    few = range(0, len(different), 37)
    bodies = [{"inputs": {"query": QUERY, "texts": one}} for one in (texts, *([texts[i]] for i in few))]
    loaded = load_model(artifact.path, "native")
    together, *alone = respond(loaded, bodies)
    scores = {one["index"]: one["score"] for one in together}

    assert loaded.engine.title.startswith("native")
    assert len(texts) == len(scores) == rerank.MAX_TEXTS
    assert [one[0]["score"] for one in alone] == [scores[i] for i in few]
    assert [one["index"] for one in together] == sorted(scores, key=lambda i: (-scores[i], i))
    assert all(scores[i] == scores[i + 333] == scores[i + 666] for i in range(333))


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_scores_of_an_embedding_model_are_cosines(pooling: str, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, pooling=pooling)
    (ranked,) = answers(tmp_path / "model", tmp_path / "out", {})
    query, texts = model.encode_query(QUERY), model.encode_document(TEXTS)

    assert [one["score"] for one in ranked] == pytest.approx(sorted((texts @ query).tolist(), reverse=True), abs=1e-5)


def test_unsupported_activation_is_rejected(tmp_path: Path) -> None:
    source = save_transformer(tmp_path / "model", labels=1)
    edit(source / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"})
    with pytest.raises(ConversionError, match="only Sigmoid and Identity are"):
        cross_encoder_problem(source)


@pytest.fixture
def task(tokenizer: Tokenizer) -> rerank.Rerank:
    return rerank.create(tokenizer, manifest("rerank", 1, ("LABEL_0",), problem="single_label"))


def test_rerank_rejects_empty_and_long_texts(task: rerank.Rerank) -> None:
    assert rejection(task, {"query": " ", "texts": ["a"]}) == ("empty_input", "/inputs/query", None)
    assert rejection(task, {"query": "a", "texts": ["a", ""]}) == ("empty_input", "/inputs/texts/1", None)
    long = {"query": "a", "texts": ["a", "a " * MAX_TOKENS]}
    assert rejection(task, long, truncation=False) == ("input_too_long", "/inputs/texts/1", MAX_TOKENS)


@pytest.mark.parametrize(
    ("inputs", "parameters", "kind"),
    [
        ({"query": "a", "texts": []}, {}, "too_short"),
        ({"query": "a", "texts": ["a"] * (rerank.MAX_TEXTS + 1)}, {}, "too_long"),
        ({"query": "a", "texts": ["a", 1]}, {}, "string_type"),
        ({"query": "a", "texts": "a"}, {}, "list_type"),
        ({"texts": ["a"]}, {}, "missing"),
        ({"query": "a", "texts": ["a"], "documents": ["a"]}, {}, "extra_forbidden"),
        ({"query": "a", "texts": ["a"]}, {"top_n": 0}, "greater_than_equal"),
        ({"query": "a", "texts": ["a"]}, {"top_n": rerank.MAX_TEXTS + 1}, "less_than_equal"),
        ({"query": "a", "texts": ["a"]}, {"return_documents": "yes"}, "bool_type"),
    ],
)
def test_rerank_rejects_invalid_requests(task: rerank.Rerank, inputs: Any, parameters: Any, kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        task.Request.model_validate_json(json.dumps({"inputs": inputs, "parameters": parameters}))

    assert [error["type"] for error in caught.value.errors()] == [kind]


def test_rerank_needs_one_output(tokenizer: Tokenizer) -> None:
    wrong = replace(manifest("rerank", 2, ("a", "b"), problem="single_label"))
    with pytest.raises(ValueError, match="rerank needs a classifier with one label, or an embedding model"):
        rerank.create(tokenizer, wrong)


def test_evaluator_computes_the_mean_reciprocal_rank(task: rerank.Rerank, tmp_path: Path) -> None:
    data = tmp_path / "queries.jsonl"
    rows = [("q", "a", "0"), ("q", "b", "1"), ("no answer", "a", "0"), ("r", "c", "1")]
    data.write_text("".join(json.dumps(dict(zip(("query", "text", "label"), r, strict=True))) + "\n" for r in rows))
    cases = list(evaluation.create("rerank", task).cases(data, 0, None))
    request = task.Request.model_validate(cases[0].body)
    response = task.decode(request, task.encode(request), [np.array([[x]]) for x in (0.2, 0.1)])

    assert [case.body["inputs"]["query"] for case in cases] == ["q", "r"]
    assert cases[0].grade(response)[0].scores == {"mrr_10": 0.5}


def test_partial_request_ranks_the_texts_that_can_be_ranked(task: rerank.Rerank) -> None:
    texts = ["a", " ", "b", "a " * 99, "c"]
    body = {"inputs": {"query": "q", "texts": texts}, "partial": True, "parameters": {"truncation": False, "top_n": 2}}
    request = task.Request.model_validate(body)
    encodings = task.encode(request)

    assert [one.text_index for one in encodings] == [0, 2, 4]
    found = task.decode(request, encodings, [np.array([[x]]) for x in (0.1, 0.3, 0.2)])
    assert [(one["index"], one.get("code")) for one in found] == [
        (2, None), (4, None), (1, "empty_input"), (3, "input_too_long")
    ]  # fmt: skip
    alone = task.encode(task.Request.model_validate(body | {"inputs": {"query": "q", "texts": ["b"]}}))
    assert np.array_equal(alone[0].input_ids, encodings[1].input_ids)
    with pytest.raises(Unprocessable, match="empty") as caught:
        task.encode(task.Request.model_validate(body | {"partial": False}))
    assert caught.value.field_errors[0].pointer == "/inputs/texts/1"


@pytest.mark.parametrize("query", ["", " ", "\u200b", "\x00\x01"])
def test_blank_query_fails_a_partial_request_too(task: rerank.Rerank, query: str) -> None:
    request = task.Request.model_validate({"inputs": {"query": query, "texts": ["a", "b"]}, "partial": True})
    with pytest.raises(Unprocessable, match="empty"):
        task.encode(request)
