"""Tests of imports without options: the task is inferred, and the answers equal those of the reference packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pytest
import transformers
from sklearn.linear_model import LogisticRegression
from torch import nn

from swiftlet_models.artifact import Artifact
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.goldens import cases
from tests.support.checkpoints import SMALL, randomise
from tests.support.sentence_checkpoints import save_encoder, save_transformer

NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}


def import_it(source: Path, **options: Any) -> Artifact:
    return import_checkpoint(str(source), None, source.parent / "out", max_loss=0.5, report=lambda _: None, **options)[
        0
    ]


def save(path: Path, kind: str, name: str = "bert", **settings: Any) -> Path:
    """Writes a small checkpoint of a class of transformers, with the tokenizer of the golden tests."""
    save_transformer(path)
    vocabulary = len((path / "vocab.txt").read_text("utf-8").splitlines())
    config = SMALL[name].config(vocab_size=vocabulary, **settings)
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config).eval()
    randomise(model)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("kind", "settings", "task"),
    [
        ("SequenceClassification", {"num_labels": 3}, "classify"),
        ("SequenceClassification", {"num_labels": 4, "problem_type": "multi_label_classification"}, "classify"),
        ("SequenceClassification", {"num_labels": 1}, "rerank"),
        ("SequenceClassification", {"num_labels": 1, "problem_type": "regression"}, "classify"),
        ("SequenceClassification", {"id2label": NLI, "label2id": {v: k for k, v in NLI.items()}}, "zero-shot"),
        ("TokenClassification", {"num_labels": 5}, "entities"),
        ("QuestionAnswering", {}, "qa"),
        ("MaskedLM", {}, "fill-mask"),
        ("PreTraining", {}, "fill-mask"),
    ],
)
def test_the_head_tells_the_task(tmp_path: Path, kind: str, settings: dict[str, Any], task: str) -> None:
    manifest = import_it(save(tmp_path / "it", kind, **settings)).manifest

    assert manifest.task == task
    assert manifest.name == "it"


def test_a_model_of_sentence_transformers_embeds(tmp_path: Path) -> None:
    encoder = save_encoder(tmp_path)
    artifact = import_it(tmp_path / "model", precision="fp32")
    (vectors,) = respond(load_model(artifact.path, "onnx_cpu"), [{"inputs": list(cases.SENTENCES)}])

    assert artifact.manifest.task == "embed"
    np.testing.assert_allclose(np.array(vectors), encoder.encode(list(cases.SENTENCES)), atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "modules"),
    [
        (None, {"normalize": False, "pooling": "lasttoken"}),
        (["bad", "good", "neither"], {"normalize": True, "default_prompt": "query"}),
        (None, {"normalize": False, "dense": nn.Identity()}),
    ],
)
def test_a_setfit_model_classifies(tmp_path: Path, labels: list[str] | None, modules: dict[str, Any]) -> None:
    encoder = save_encoder(tmp_path, **modules)
    texts = list(cases.SENTENCES)
    head = LogisticRegression().fit(encoder.encode(texts), np.arange(len(texts)) % 3)
    joblib.dump(head, tmp_path / "model" / "model_head.pkl")
    (tmp_path / "model" / "config_setfit.json").write_text(json.dumps({"labels": labels}), "utf-8")
    artifact = import_it(tmp_path / "model", precision="fp32")
    (answers,) = respond(load_model(artifact.path, "onnx_cpu"), [{"inputs": texts}])
    scores = [
        [{entry["label"]: entry["score"] for entry in answer}[label] for label in artifact.manifest.labels]
        for answer in answers
    ]

    assert artifact.manifest.task == "classify"
    assert artifact.manifest.labels == tuple(labels or "012")
    np.testing.assert_allclose(scores, head.predict_proba(encoder.encode(texts)), atol=1e-4)


@pytest.mark.parametrize(
    ("normalize", "dense", "what"),
    [(False, nn.Tanh(), "has a Dense module with an activation"), (True, nn.Identity(), "normalises vectors after")],
)
def test_a_setfit_model_with_two_layers_is_refused(
    tmp_path: Path, normalize: bool, dense: nn.Module, what: str
) -> None:
    encoder = save_encoder(tmp_path, normalize=normalize, dense=dense)
    texts = list(cases.SENTENCES)
    joblib.dump(
        LogisticRegression().fit(encoder.encode(texts), np.arange(len(texts)) % 2),
        tmp_path / "model" / "model_head.pkl",
    )
    with pytest.raises(ConversionError, match=rf"{what}.* :task=embed"):
        import_it(tmp_path / "model")


def test_an_encoder_without_a_head_needs_a_task(tmp_path: Path) -> None:
    source = save_transformer(tmp_path / "it")
    with pytest.raises(ConversionError) as error:
        import_it(source)
    message = str(error.value)

    assert "names BertModel, which has no head, so it does not tell the task." in message
    assert f"swiftlet serve {source}:task=embed,pooling=mean" in message
    assert import_it(source, pooling="mean").manifest.task == "embed"


def test_a_network_of_few_positions_is_imported(tmp_path: Path) -> None:
    artifact = import_it(save_transformer(tmp_path / "few", 2, max_position_embeddings=20))
    assert artifact.manifest.max_tokens == 20
