"""Reranking: parity with CrossEncoder and with the cosine of embeddings, requests and their errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from torch import nn

from swiftlet_serve.models.convert import ConversionError
from swiftlet_serve.models.sentence_transformers import cross_encoder_problem
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service.loading import load_model
from swiftlet_serve.service.offline.evaluate import respond
from swiftlet_serve.service.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.service.tasks import rerank
from tests.support.sentence_checkpoints import edit, save_encoder, save_transformer
from tests.support.task_requests import MAX_TOKENS, manifest, rejection

QUERY = "A warm film?"
TEXTS = ["It was warm.", "서울의 봄은 짧다.", "emoji 😀 only", "long words " * 60, "no"]


def answers(source: Path, out: Path, *parameters: dict[str, Any]) -> list[Any]:
    artifact, _ = import_checkpoint(
        str(source), "rerank", out, name="model", precision="fp32", max_loss=0.5, report=lambda _: None
    )
    bodies = [{"inputs": {"query": QUERY, "texts": TEXTS}, "parameters": one} for one in parameters]
    return respond(load_model(artifact.path, "onnx_cpu"), bodies)


@pytest.mark.parametrize("activation", [None, nn.Sigmoid(), nn.Identity()])
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


def test_scores_of_an_embedding_model_are_cosines(tmp_path: Path) -> None:
    model = save_encoder(tmp_path)
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
    for texts in ([], ["a"] * (rerank.MAX_TEXTS + 1)):
        with pytest.raises(ValueError, match="validation error"):
            task.Request.model_validate({"inputs": {"query": "a", "texts": texts}})


def test_rerank_needs_one_output(tokenizer: Tokenizer) -> None:
    wrong = replace(manifest("rerank", 2, ("a", "b"), problem="single_label"))
    with pytest.raises(ValueError, match="rerank needs a classifier with one label, or an embedding model"):
        rerank.create(tokenizer, wrong)


def test_evaluator_computes_the_mean_reciprocal_rank(task: rerank.Rerank, tmp_path: Path) -> None:
    data = tmp_path / "queries.jsonl"
    rows = [("q", "a", "0"), ("q", "b", "1"), ("no answer", "a", "0"), ("r", "c", "1")]
    data.write_text("".join(json.dumps(dict(zip(("query", "text", "label"), r, strict=True))) + "\n" for r in rows))
    cases = list(rerank.Evaluator(task).cases(data, 0, None))
    response = task.decode(task.Request.model_validate(cases[0].body), [], [np.array([[x]]) for x in (0.2, 0.1)])

    assert [case.body["inputs"]["query"] for case in cases] == ["q", "r"]
    assert cases[0].grade(response)[0].scores == {"mrr_10": 0.5}
