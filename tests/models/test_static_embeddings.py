"""Static embeddings: the vectors of model2vec and of StaticEmbedding of sentence-transformers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer as Library

from swiftlet_models import datasets
from swiftlet_models.artifact import Artifact, open_artifact
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.errors import ModelError
from swiftlet_models.static_embeddings import MAX_TOKENS, is_static, read
from swiftlet_serve import evaluation
from swiftlet_serve.errors import SetupError, Unprocessable
from swiftlet_serve.inference.loading import BUNDLED, load_model
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint

PARITY = 1e-6
WIDTH, CLUSTERS = 32, 20
UNKNOWN = "\U0001f600"  # in a text by itself: nothing but the unknown token
TEXTS = ["A warm film.", "a", f"films {UNKNOWN} warm", UNKNOWN, "long words " * 60, "  spaces  "]


@pytest.fixture(scope="module")
def tokenizer() -> Library:
    return Library.from_file(str(BUNDLED / "mobilebert-embed/tokenizer.json"))


def save(directory: Path, tokenizer: Library, *, mapped: bool = False, **config: Any) -> dict[str, Any]:
    """Writes what model2vec writes. Returns the tensors."""
    random, size = np.random.default_rng(0), tokenizer.get_vocab_size()
    tensors: dict[str, Any] = {
        "embeddings": random.normal(size=(CLUSTERS if mapped else size, WIDTH)).astype(np.float32)
    }
    if mapped:
        tensors |= {"mapping": random.integers(0, CLUSTERS, size), "weights": random.random(size).astype(np.float32)}
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"model_type": "model2vec", **config}))
    return tensors


def expected(tokenizer: Library, tensors: dict[str, Any], texts: list[str], *, normalize: bool) -> np.ndarray:
    """Returns the vectors of `StaticModel.encode`, by its definition."""
    unknown, vectors = tokenizer.token_to_id("[UNK]"), []
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids = [number for number in encoding.ids if number != unknown]
        rows = tensors["embeddings"][tensors["mapping"][ids] if "mapping" in tensors else ids]
        rows = rows * tensors["weights"][ids][:, None] if "weights" in tensors else rows
        vector = rows.mean(0) if ids else np.zeros(WIDTH)
        vectors.append(vector / (np.linalg.norm(vector) + 1e-32) if normalize else vector)
    return np.array(vectors)


def imported(source: Path, out: Path, precision: Any = "fp32", **options: Any) -> Artifact:
    options = {"name": precision, "max_loss": 0.5, "report": lambda _: None, "task": None} | options
    artifact, _ = import_checkpoint(str(source), options.pop("task"), out, precision=precision, **options)
    return artifact


def vectors(artifact: Artifact, engine: str, texts: list[str], **parameters: Any) -> np.ndarray:
    (response,) = respond(load_model(artifact.path, engine), [{"inputs": texts, "parameters": parameters}])
    return np.array(response)


@pytest.mark.parametrize("mapped", [False, True])
def test_vectors_equal_those_of_model2vec(mapped: bool, tokenizer: Library, tmp_path: Path) -> None:
    texts = [*TEXTS, *(text.text for text in datasets.unlabelled(evaluation.BUILT_IN))]
    tensors = save(tmp_path / "model", tokenizer, mapped=mapped, normalize=not mapped)
    wanted = expected(tokenizer, tensors, texts, normalize=not mapped)
    exact = imported(tmp_path / "model", tmp_path)

    assert not wanted[TEXTS.index(UNKNOWN)].any()
    assert exact.manifest.reading.skip_unknown
    assert open_artifact(exact.path).manifest == exact.manifest
    for engine in ("onnx_cpu", "torch"):
        assert np.abs(vectors(exact, engine, texts) - wanted).max() <= PARITY
    rounded = imported(tmp_path / "model", tmp_path, "int8")
    found = vectors(rounded, "native", texts)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    assert ((found * wanted).sum(1) >= 0.9995 * lengths).all()
    alone = np.concatenate([vectors(rounded, "native", [text]) for text in TEXTS])
    assert np.array_equal(found[: len(TEXTS)], alone)


@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_equal_those_of_sentence_transformers(normalize: bool, tokenizer: Library, tmp_path: Path) -> None:
    modules: list[Any] = [StaticEmbedding(tokenizer, embedding_dim=WIDTH), *([Normalize()] if normalize else [])]
    model = SentenceTransformer(modules=modules, prompts={"query": "find "}, device="cpu")
    model.save(str(tmp_path / "model"))
    artifact = imported(tmp_path / "model", tmp_path)

    assert artifact.manifest.embedding is not None
    assert artifact.manifest.embedding.normalize == normalize
    for prompt in (None, "query"):
        wanted = model.encode(TEXTS, prompt_name=prompt)
        assert np.abs(vectors(artifact, "onnx_cpu", TEXTS, prompt_name=prompt) - wanted).max() <= PARITY


def test_an_older_directory_of_model2vec_has_no_list_of_modules(tokenizer: Library, tmp_path: Path) -> None:
    save(tmp_path, tokenizer, max_length=7)
    assert is_static(tmp_path)
    assert read(tmp_path).max_tokens == 7
    save(tmp_path, tokenizer, max_length=None)
    assert read(tmp_path).max_tokens == MAX_TOKENS
    modules = [{"path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "config.json").write_text("{}")
    assert is_static(tmp_path)
    assert read(tmp_path).tokenizer.reading.skip_unknown  # the tensors are model2vec's


def test_a_text_without_tokens_is_refused(tokenizer: Library, tmp_path: Path) -> None:
    save(tmp_path / "model", tokenizer)
    task = load_model(imported(tmp_path / "model", tmp_path).path, "onnx_cpu").task
    with pytest.raises(Unprocessable, match="empty"):
        task.encode(task.Request.model_validate({"inputs": ["a", "\u200b"]}))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"table": np.ones((4, 2), np.float32)}, "the tensors are not those of static embeddings"),
        ({"embeddings": np.ones(4, np.float32)}, "the tensors are not those of static embeddings"),
        ({"mapping": np.array([1 << 20])}, "mapping and weights do not fit"),
        ({"mapping": np.array([0])}, "tokens, but there are 1 vectors"),
        ({"weights": np.ones(3, np.float32)}, "mapping and weights do not fit"),
        ({"embeddings": np.full((4, 2), np.nan, np.float32)}, "not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors: Any, message: str, tokenizer: Library, tmp_path: Path) -> None:
    save_file(save(tmp_path, tokenizer) | tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        read(tmp_path)


def test_what_is_no_table_of_vectors_is_refused(tokenizer: Library, tmp_path: Path) -> None:
    save(tmp_path, tokenizer, max_length=-1)
    with pytest.raises(ConversionError, match="max_length"):
        read(tmp_path)
    save(tmp_path, tokenizer)
    for options in ({"task": "classify"}, {"pooling": "cls", "task": "embed"}):
        with pytest.raises(SetupError, match="static embeddings"):
            imported(tmp_path, tmp_path / "out", **options)
