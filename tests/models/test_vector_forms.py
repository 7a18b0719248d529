"""Import of SPLADE, bge-m3 and ColBERT: the outputs of sentence-transformers and of transformers, and refusals."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SparseEncoder
from torch import nn
from transformers import BertTokenizerFast

from swiftlet_models.artifact import Artifact
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.sentence_transformers import named_pooling, read_encoder
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.evaluate import respond
from tests.support.checkpoints import randomise
from tests.support.embedding_parity import imported
from tests.support.sentence_checkpoints import WIDTH, edit, make_sentence_encoder, save_masked_lm, save_transformer
from tests.support.tiers import first

TEXTS = ["A warm film.", "서울의 봄", "emoji 😀🎬 only", "a a a", "(long) words, " * 9, "naïve café"]
PARITY = 1e-5
SEVERAL = 24
QUERY, DOCUMENT = 16, 20


def answers(artifact: Artifact, **parameters: Any) -> Any:
    (response,) = respond(load_model(artifact.path, "onnx_cpu"), [{"inputs": TEXTS, "parameters": parameters}])
    return response


def tokens(checkpoint: Path, text: str, most: int) -> list[int]:
    ids: list[int] = BertTokenizerFast.from_pretrained(checkpoint)(text, truncation=True, max_length=most).input_ids
    return ids


def test_splade_equals_the_sparse_encoder(tmp_path: Path) -> None:
    checkpoint = save_masked_lm(tmp_path / "plain")
    model = SparseEncoder(str(checkpoint), device="cpu")
    model.save_pretrained(str(tmp_path / "model"))
    expected = model.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()

    for source, options in ((tmp_path / "model", {}), (checkpoint, {"pooling": "splade"})):
        artifact = imported(source, tmp_path / f"out{len(options)}", **options)
        for vector, row in zip(answers(artifact), expected, strict=True):
            assert vector["indices"] == np.flatnonzero(row).tolist()
            assert np.abs(vector["values"] - row[vector["indices"]]).max() <= PARITY
    assert named_pooling(artifact.manifest.embedding) == "splade"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling_strategy": "sum"}, "maximum"),
        ({"activation_function": "gelu"}, "activation of SpladePooling"),
        ({"activation_function": []}, "activation of"),
    ],
)
def test_another_splade_is_refused(change: dict[str, str], message: str, tmp_path: Path) -> None:
    SparseEncoder(str(save_masked_lm(tmp_path / "plain")), device="cpu").save_pretrained(str(tmp_path / "model"))
    edit(tmp_path / "model/1_SpladePooling/config.json", **change)
    with pytest.raises(ConversionError, match=message):
        read_encoder(tmp_path / "model")


def heads(checkpoint: Path) -> tuple[nn.Linear, nn.Linear]:
    """Writes the matrices of bge-m3 beside a checkpoint."""
    linears = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, SEVERAL)
    for name, linear in zip(("sparse", "colbert"), linears, strict=True):
        randomise(linear)
        torch.save(linear.state_dict(), checkpoint / f"{name}_linear.pt")
    return linears


@torch.no_grad()
def test_bge_m3_gives_three_outputs_in_one_pass(tmp_path: Path) -> None:
    checkpoint = save_transformer(tmp_path / "model")
    make_sentence_encoder(checkpoint, "cls")
    sparse, several = heads(checkpoint)
    artifact = imported(checkpoint, tmp_path / "out")
    encoder = transformers.AutoModel.from_pretrained(checkpoint)
    unused = {
        BertTokenizerFast.from_pretrained(checkpoint).convert_tokens_to_ids(f"[{t}]") for t in ("CLS", "PAD", "UNK")
    }

    for text, answer in zip(TEXTS, answers(artifact, output=["dense", "sparse", "multi_vector"]), strict=True):
        ids = tokens(checkpoint, text, artifact.manifest.max_tokens)
        hidden = encoder(torch.tensor([ids])).last_hidden_state[0]
        dense = nn.functional.normalize(hidden[0], dim=0)
        vectors = nn.functional.normalize(several(hidden[1:]), dim=1)
        weights: dict[int, float] = {}
        for token, weight in zip(ids, sparse(hidden)[:, 0].tolist(), strict=True):
            if token not in unused and weight > 0:
                weights[token] = max(weight, weights.get(token, 0))
        assert np.abs(np.array(answer["dense"]) - dense.numpy()).max() <= PARITY
        assert np.abs(np.array(answer["multi_vector"]) - vectors.numpy()).max() <= PARITY
        assert answer["sparse"]["indices"] == sorted(weights)
        assert answer["sparse"]["values"] == pytest.approx([weights[i] for i in sorted(weights)], abs=1e-4)
    assert answers(artifact, output="dense") == [one["dense"] for one in answers(artifact, output=["dense"])]


def test_damaged_heads_of_bge_m3_are_refused(tmp_path: Path) -> None:
    checkpoint = save_transformer(tmp_path / "model")
    heads(checkpoint)
    with pytest.raises(ConversionError, match="only the pooling cls"):
        read_encoder(checkpoint, "mean")
    torch.save({"bias": torch.zeros(1)}, checkpoint / "sparse_linear.pt")
    with pytest.raises(ConversionError, match="does not hold the weight"):
        read_encoder(checkpoint, "cls")
    (checkpoint / "sparse_linear.pt").write_text("no archive")
    with pytest.raises(ConversionError, match=r"sparse_linear\.pt"):
        read_encoder(checkpoint, "cls")


def save_pylate(path: Path, *, attends: bool) -> np.ndarray:
    """Writes a ColBERT as PyLate does, and returns its matrix."""
    save_transformer(path)
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    (path / "modules.json").write_text(json.dumps([{"path": where, "type": kind} for where, kind in modules]), "utf-8")
    settings = {"query_length": QUERY, "document_length": DOCUMENT, "attend_to_expansion_tokens": attends}
    settings |= {"query_prefix": "when", "document_prefix": "more"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings), "utf-8")
    dense = nn.Linear(WIDTH, SEVERAL, bias=False)
    randomise(dense)
    (path / "1_Dense").mkdir()
    (path / "1_Dense/config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.linear.Identity", "use_residual": False}), "utf-8"
    )
    torch.save({"linear.weight": dense.weight.detach()}, path / "1_Dense/pytorch_model.bin")
    return dense.weight.detach().numpy()


@torch.no_grad()
def expected(checkpoint: Path, matrix: np.ndarray, text: str, *, is_query: bool, attends: bool) -> np.ndarray:
    """Computes the vectors of a text as PyLate does, with the code of transformers."""
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    first, *rest = tokens(checkpoint, text, (QUERY if is_query else DOCUMENT) - 1)
    ids = [first, tokenizer.convert_tokens_to_ids("when" if is_query else "more"), *rest]
    masks = QUERY - len(ids) if is_query else 0
    mask = torch.tensor([[1] * len(ids) + [int(attends)] * masks])
    ids += [tokenizer.mask_token_id] * masks
    encoder = transformers.AutoModel.from_pretrained(checkpoint)
    hidden = encoder(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0].numpy()
    skipped = set() if is_query else set(tokenizer.convert_tokens_to_ids([*string.punctuation]))
    vectors = (hidden @ matrix.T)[[token not in skipped for token in ids]]
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@pytest.mark.parametrize("attends", first([False, True], True))
def test_colbert_equals_pylate(attends: bool, tmp_path: Path) -> None:
    matrix = save_pylate(tmp_path / "model", attends=attends)
    artifact = imported(tmp_path / "model", tmp_path / "out")
    for is_query in (False, True):
        found = answers(artifact, **({"prompt_name": "query"} if is_query else {}))
        for text, vectors in zip(TEXTS, found, strict=True):
            wanted = expected(tmp_path / "model", matrix, text, is_query=is_query, attends=attends)
            assert np.shape(vectors) == wanted.shape
            assert np.abs(vectors - wanted).max() <= PARITY


def test_colbert_of_stanford_is_read(tmp_path: Path) -> None:
    checkpoint = save_transformer(tmp_path / "plain")
    encoder, linear = transformers.AutoModel.from_pretrained(checkpoint), nn.Linear(WIDTH, SEVERAL, bias=False)
    randomise(linear)
    state = {f"bert.{name}": tensor for name, tensor in encoder.state_dict().items()}
    (checkpoint / "model.safetensors").unlink()
    torch.save(state | {"linear.weight": linear.weight.detach()}, checkpoint / "pytorch_model.bin")
    edit(checkpoint / "config.json", architectures=["HF_ColBERT"])
    settings = {"query_token_id": "when", "doc_token_id": "more", "query_maxlen": QUERY, "doc_maxlen": DOCUMENT}
    (checkpoint / "artifact.metadata").write_text(json.dumps(settings), "utf-8")

    artifact = imported(checkpoint, tmp_path / "out")
    encoder.save_pretrained(tmp_path / "encoder")
    (tmp_path / "encoder/vocab.txt").write_bytes((checkpoint / "vocab.txt").read_bytes())
    matrix = linear.weight.detach().numpy()
    for text, vectors in zip(TEXTS, answers(artifact), strict=True):
        wanted = expected(tmp_path / "encoder", matrix, text, is_query=False, attends=False)
        assert np.abs(vectors - wanted).max() <= PARITY


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_length": 0}, "length"),
        ({"query_prefix": "[no such token]"}, "lacks the token"),
        ({"skiplist_words": "no list"}, "skiplist_words"),
        ({"do_query_expansion": 1}, "do_query_expansion"),
    ],
)
def test_invalid_settings_of_colbert_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_pylate(tmp_path / "model", attends=False)
    edit(tmp_path / "model/config_sentence_transformers.json", **change)
    with pytest.raises(ConversionError, match=message):
        read_encoder(tmp_path / "model")
