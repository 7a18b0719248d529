"""Import of sentence-transformers directories: the vectors of `encode`, and one sentence for what is not supported."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from swiftlet_models.artifact import Artifact, Embedding, Pooling
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.sentence_transformers import MODULES, SETTINGS, read_encoder
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.support import embedding_parity, standard_checkpoints
from tests.support.embedding_parity import imported
from tests.support.sentence_checkpoints import (
    DENSE_WIDTH,
    MAX_TOKENS,
    PROMPTS,
    WIDTH,
    edit,
    save_encoder,
    save_transformer,
)
from tests.support.tiers import first

TEXTS = [
    "A warm film.",
    "서울의 봄은 짧지만 아름답다.",
    "emoji 😀🎬 only",
    "a",
    "long words " * 60,
    "e\u0301, naïve café and ﬁ",
    "  spaces around  ",
    "\u200b",
]
PARITY = 1e-5


def vectors(artifact: Artifact, engine: str, **parameters: Any) -> np.ndarray:
    (response,) = respond(load_model(artifact.path, engine), [{"inputs": TEXTS, "parameters": parameters}])
    return np.array(response)


MEAN, TANH = ("mean", None), ("mean", nn.Tanh())
KINDS = [("cls", None), MEAN, ("max", None), TANH, ("cls", nn.Identity()), ("cls", nn.ReLU())]
KINDS += [("mean", nn.GELU()), ("max", nn.SiLU())]


@pytest.mark.parametrize(
    ("pooling", "dense"),
    first(KINDS, MEAN, TANH),
    ids=["cls", "mean", "max", "tanh", "identity", "relu", "gelu", "silu"],
)
def test_vectors_equal_those_of_sentence_transformers(pooling: str, dense: Any, tmp_path: Path) -> None:
    model = save_encoder(tmp_path, pooling, normalize=False, dense=dense)
    artifact = imported(tmp_path / "model", tmp_path / "out", keep_fp32=True)

    assert artifact.manifest.width == (DENSE_WIDTH if dense else WIDTH)
    assert artifact.manifest.max_tokens == MAX_TOKENS
    for engine in ("onnx_cpu", "torch"):
        for prompt in (None, "query"):
            for normalize in (False, True):
                expected = model.encode(TEXTS, prompt_name=prompt, normalize_embeddings=normalize)
                found = vectors(artifact, engine, prompt_name=prompt, normalize=normalize)
                assert np.abs(found - expected).max() <= PARITY * max(1, np.abs(expected).max())


@pytest.mark.exhaustive
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_vectors_of_a_thousand_texts_equal_those_of_sentence_transformers(pooling: str, tmp_path: Path) -> None:
    model, artifact = embedding_parity.save(tmp_path, pooling)

    assert len(embedding_parity.texts()) >= embedding_parity.COUNT - 50
    for i, options in enumerate(embedding_parity.OPTIONS):
        wanted = embedding_parity.expected(model, options)
        found = embedding_parity.vectors(artifact, ("onnx_cpu", "torch")[i % 2], options)
        assert found.shape == wanted.shape
        assert embedding_parity.difference(found, wanted) <= PARITY, options


@pytest.mark.parametrize("pooling", ["mean", "mean_sqrt_len_tokens"])
def test_normalize_module_is_the_default(tmp_path: Path, pooling: str) -> None:
    """Of vectors of length 1, the second pooling makes the same ones as the first."""
    model = save_encoder(tmp_path, pooling)
    artifact = imported(tmp_path / "model", tmp_path / "out")

    assert artifact.manifest.embedding == Embedding("mean", normalize=True, prompts=PROMPTS)
    assert np.abs(vectors(artifact, "onnx_cpu") - model.encode(TEXTS)).max() <= PARITY
    raw = vectors(artifact, "onnx_cpu", normalize=False)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=0.01)
    cut = vectors(artifact, "onnx_cpu", dimensions=8)
    expected = model.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
    assert np.abs(cut - expected).max() <= PARITY


def test_normalize_before_a_map_that_another_one_follows_does_not_matter(tmp_path: Path) -> None:
    model = save_encoder(tmp_path, dense=nn.Identity(), first_unit=True, bias=False)
    artifact = imported(tmp_path / "model", tmp_path / "out")
    assert np.abs(vectors(artifact, "onnx_cpu") - model.encode(TEXTS)).max() <= PARITY


@pytest.mark.parametrize("options", [{"dense": nn.Identity()}, {"dense": nn.Tanh(), "bias": False}])
def test_normalize_before_another_dense_module_is_refused(tmp_path: Path, options: Any) -> None:
    save_encoder(tmp_path, first_unit=True, **options)
    with pytest.raises(
        ConversionError, match="a Normalize before a Dense module is supported only if that has no bias"
    ):
        read_encoder(tmp_path / "model")


def test_base64_holds_the_same_numbers(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    artifact = imported(tmp_path / "model", tmp_path / "out")
    bodies = [{"inputs": TEXTS, "parameters": {"encoding_format": kind}} for kind in ("float", "base64")]
    numbers, encoded = respond(load_model(artifact.path, "onnx_cpu"), bodies)

    decoded = np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in encoded])
    assert np.abs(decoded - np.array(numbers)).max() <= 1e-7


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_transformers_encoder_takes_its_pooling_from_the_option(pooling: Pooling, tmp_path: Path) -> None:
    source = save_transformer(tmp_path / "encoder")

    assert read_encoder(source, pooling).embedding == Embedding(pooling)


def test_languages_come_from_the_option_or_the_model_card(tmp_path: Path) -> None:
    source = save_transformer(tmp_path / "encoder")
    (source / "README.md").write_text("---\nlanguage:\n- ko\n---\n", "utf-8")
    by_card, by_option = {}, {"languages": ["en", "zh-Hant"]}

    for options, expected in ((by_card, ("ko",)), (by_option, ("en", "zh-Hant"))):
        assert imported(source, tmp_path / "out", pooling="cls", **options).manifest.languages == expected
    with pytest.raises(SetupError, match="'english' is not a language tag"):
        imported(source, tmp_path / "out", pooling="cls", languages=["english"])


def test_task_without_vectors_rejects_a_pooling(tmp_path: Path) -> None:
    source = save_transformer(tmp_path / "encoder", labels=2)
    with pytest.raises(SetupError, match="The task classify has no use for --pooling"):
        import_checkpoint(
            str(source), "classify", tmp_path / "out", max_loss=0.5, pooling="mean", report=lambda _: None
        )


def add_module(kind: str, path: str = "9_More") -> Any:
    def change(model: Path) -> None:
        modules = json.loads((model / MODULES).read_text("utf-8"))
        modules.append({"idx": 9, "name": "9", "path": path, "type": f"sentence_transformers.models.{kind}"})
        (model / MODULES).write_text(json.dumps(modules), "utf-8")

    return change


def change(file: str, **changes: Any) -> Any:
    return lambda model: edit(model / file, **changes)


POOLING = "1_Pooling/config.json"


def root_mean_alone(model: Path) -> None:
    edit(model / POOLING, pooling_mode="mean_sqrt_len_tokens")
    modules = json.loads((model / MODULES).read_text("utf-8"))
    (model / MODULES).write_text(json.dumps(modules[:2]), "utf-8")


LEGACY = {"pooling_mode": None, "pooling_mode_cls_token": False}


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            add_module("Pooling"),
            "the modules Transformer, Pooling, Normalize, Pooling are not supported in this order.",
        ),
        (add_module("Normalize", "../other"), "modules.json does not list modules with a type and a path."),
        (lambda model: (model / MODULES).write_text("{}", "utf-8"), "modules.json is not a JSON array."),
        (
            change(POOLING, pooling_mode="weightedmean"),
            "the pooling weightedmean is not supported, only one of cls, mean, max, lasttoken is,",
        ),
        (change(POOLING, pooling_mode=["cls", "mean"]), "the pooling cls with mean is not supported"),
        (change(POOLING, pooling_mode=[["cls"]]), "the pooling ['cls'] is not supported"),
        (root_mean_alone, "or mean_sqrt_len_tokens with a module Normalize next. Train the model with that."),
        (lambda model: (model / POOLING).unlink(), "1_Pooling/config.json is missing. Copy the directory of the model"),
        (change(POOLING, **LEGACY), "the pooling none is not supported"),
        (change(POOLING, include_prompt=False), "the pooling leaves out the tokens of the prompt"),
        (change(SETTINGS, prompts={"query": 1}), "prompts has an invalid value."),
        (change(SETTINGS, default_prompt_name="other"), "default_prompt_name is not the name of a prompt."),
        (change("sentence_bert_config.json", max_seq_length=-1), "max_seq_length has an invalid value."),
        (change("sentence_bert_config.json", max_seq_length="all"), "max_seq_length has an invalid value."),
    ],
)
def test_unsupported_directory_is_rejected_in_one_sentence(damage: Any, sentence: str, tmp_path: Path) -> None:
    save_encoder(tmp_path)
    damage(tmp_path / "model")
    with pytest.raises(ConversionError) as caught:
        read_encoder(tmp_path / "model")

    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "only Tanh, ReLU, GELU, SiLU, Identity are."),
        ({"use_residual": True}, "has a residual or reads other features"),
        ({"module_input_name": "token_embeddings"}, "has a residual or reads other features"),
        ({"module_output_name": ["sentence_embedding"]}, "has a residual or reads other features"),
    ],
)
def test_unsupported_dense_module_is_rejected(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    save_encoder(tmp_path, dense=nn.Tanh())
    edit(tmp_path / "model/2_Dense/config.json", **changes)
    with pytest.raises(ConversionError, match=sentence):
        read_encoder(tmp_path / "model")


def test_directory_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Older versions write one flag for each pooling, the token limit in another file, and neither prompts."""
    save_encoder(tmp_path)
    edit(tmp_path / "model" / POOLING, pooling_mode=None, include_prompt=None, pooling_mode_max_tokens=True)
    edit(tmp_path / "model/sentence_bert_config.json", max_seq_length=17)
    (tmp_path / "model" / SETTINGS).unlink()
    encoder = read_encoder(tmp_path / "model")

    assert (encoder.embedding, encoder.max_tokens) == (Embedding("max", normalize=True), 17)


def test_pooling_is_given_once(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    with pytest.raises(ConversionError, match=r"modules\.json sets the pooling"):
        read_encoder(tmp_path / "model", "cls")
    with pytest.raises(ConversionError, match="choose a pooling with --pooling"):
        read_encoder(tmp_path / "encoder")


@pytest.mark.parametrize("name", first(["gemma3_text", "qwen3", "t5"], "gemma3_text"))
def test_standard_families_compute_the_vectors_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    """With their own tokenizers, pooling, and Dense modules that become one."""
    texts = [text for text in embedding_parity.texts() if "<" not in text][::9]
    model = standard_checkpoints.save_model(tmp_path, name, texts)
    artifact = imported(tmp_path / "model", tmp_path / "out")
    body = {"inputs": texts, "parameters": {"prompt_name": "query"}}
    bodies = [{**body, "inputs": texts[i : i + 64]} for i in range(0, len(texts), 64)]
    expected = model.encode(texts, prompt_name="query")

    for engine in ("onnx_cpu", "torch"):
        found = [vector for response in respond(load_model(artifact.path, engine), bodies) for vector in response]
        assert np.abs(np.array(found) - expected).max() <= PARITY
