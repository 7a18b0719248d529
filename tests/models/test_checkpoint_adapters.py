"""Adapters of PEFT are merged into their base as `merge_and_unload` does, or are refused by name."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftlet_models import trunks
from swiftlet_models.adapters import Adapter, is_adapter, read_adapter
from swiftlet_models.artifact import WEIGHTS, Artifact
from swiftlet_models.checkpoint_files import locate
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.convert import convert
from swiftlet_models.errors import ModelError
from swiftlet_models.tensors import Adapted
from swiftlet_models.weights import read_weights
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.support.artifacts import VOCABULARY
from tests.support.checkpoints import SMALL, Shape, reference
from tests.support.sentence_checkpoints import make_sentence_encoder

QUERY = "bert.encoder.layer.0.attention.self.query"
KEY = "bert.encoder.layer.1.attention.self.key"
TABLE = "bert.embeddings.word_embeddings"
CONFIG = {
    "peft_type": "LORA",
    "task_type": "SEQ_CLS",
    "base_model_name_or_path": "../base",
    "r": 4,
    "lora_alpha": 6,
    "bias": "none",
    "target_modules": ["query"],
    "modules_to_save": ["classifier", "score"],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("adapters") / "base"
    reference(SMALL["bert"], "classify").save_pretrained(directory)
    return directory


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(module: str, rank: int = 4, rows: int = 48, columns: int = 48) -> dict[str, Tensor]:
    """Returns the two matrices of a module, as an adapter names them."""
    name = f"base_model.model.{module}.lora_"
    return {f"{name}A.weight": random(rank, columns), f"{name}B.weight": random(rows, rank, seed=1)}


def write(base: Path, tensors: Mapping[str, Tensor], **changes: Any) -> Path:
    """Writes an adapter beside its base."""
    directory = base.parent / "adapter"
    directory.mkdir(exist_ok=True)
    for file in directory.iterdir():
        file.unlink()
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    save_file(dict(tensors), directory / "adapter_model.safetensors")
    return directory


def read(directory: Path) -> Adapter:
    return read_adapter(directory, locate)


def check(directory: Path, changed: Mapping[str, Tensor]) -> None:
    """Compares the merged tensors, whole and in part, with those of the base and what has changed."""
    adapter = read(directory)
    expected = load_file(adapter.base / "model.safetensors") | changed
    with adapter.open() as weights:
        assert weights.keys() == expected.keys()
        for name, tensor in expected.items():
            assert np.allclose(np.asarray(weights[name]), tensor.numpy(), rtol=1e-5, atol=1e-6), name
            assert np.allclose(weights[name][1:40], tensor.numpy()[1:40], rtol=1e-5, atol=1e-6)


def merged(base: Path, module: str, scale: float, rank: int = 4) -> Tensor:
    a, b = product(module, rank).values()
    return load_file(base / "model.safetensors")[f"{module}.weight"] + scale * (b @ a)


def test_products_are_added(base: Path) -> None:
    tensors = product(QUERY) | product(KEY, rank=2)
    patterns = {"rank_pattern": {"layer.1.attention.self.key": 2}, "alpha_pattern": {"key": 10, "ery": 100}}
    changed = {f"{QUERY}.weight": merged(base, QUERY, 6 / 4), f"{KEY}.weight": merged(base, KEY, 10 / 2, rank=2)}
    check(write(base, tensors, **patterns), changed)


def test_scale_is_that_of_the_rank(base: Path) -> None:
    changed = {f"{QUERY}.weight": merged(base, QUERY, 6 / math.sqrt(4))}
    check(write(base, product(QUERY), use_rslora=True), changed)


def test_pickles_are_read(base: Path) -> None:
    directory = write(base, {})
    (directory / "adapter_model.safetensors").unlink()
    torch.save(product(QUERY), directory / "adapter_model.bin")
    check(directory, {f"{QUERY}.weight": merged(base, QUERY, 6 / 4)})


def test_tables_are_transposed(base: Path) -> None:
    a, b = product(TABLE, columns=211).values()
    name = f"base_model.model.{TABLE}.lora_embedding_"
    changed = {f"{TABLE}.weight": load_file(base / "model.safetensors")[f"{TABLE}.weight"] + 6 / 4 * (b @ a).T}
    check(write(base, {f"{name}A": a, f"{name}B": b}), changed)


def test_matrices_of_gpt2_are_transposed(tmp_path: Path) -> None:
    settings = {"n_embd": 48, "n_layer": 1, "n_head": 4, "vocab_size": 211, "bos_token_id": 0, "eos_token_id": 0}
    reference(Shape("gpt2", settings), "score").base_model.save_pretrained(tmp_path / "base")
    modules = {"h.0.attn.c_attn": 144, "h.0.attn.c_proj": 48}
    products = {module: product(f"transformer.{module}", rows=rows) for module, rows in modules.items()}
    state = load_file(tmp_path / "base/model.safetensors")
    changed = {}
    for module, tensors in products.items():
        a, b = tensors.values()
        changed[f"{module}.weight"] = state[f"{module}.weight"] + 6 / 4 * (b @ a).T
    tensors = {name: tensor for part in products.values() for name, tensor in part.items()}
    check(write(tmp_path / "base", tensors, fan_in_fan_out=True, task_type="CAUSAL_LM"), changed)


def test_rows_of_dora_have_their_magnitudes(base: Path) -> None:
    magnitudes = random(48, seed=2).abs() + 1
    tensors = product(QUERY) | {f"base_model.model.{QUERY}.lora_magnitude_vector": magnitudes}
    sums = merged(base, QUERY, 6 / 4)
    expected = sums / sums.norm(dim=1, keepdim=True) * magnitudes[:, None]
    check(write(base, tensors, use_dora=True), {f"{QUERY}.weight": expected})


@pytest.mark.parametrize("name", ["classifier.", "classifier.modules_to_save."])  # in new and old versions of PEFT
def test_heads_and_biases_replace_those_of_the_base(base: Path, name: str) -> None:
    head = {"classifier.weight": random(5, 48), "classifier.bias": random(5), f"{QUERY}.bias": random(48, seed=3)}
    tensors = product(QUERY) | {
        f"base_model.model.{name}weight": head["classifier.weight"],
        f"base_model.model.{name}bias": head["classifier.bias"],
        f"base_model.model.{QUERY}.base_layer.bias": head[f"{QUERY}.bias"],
    }
    directory = write(base, tensors, bias="lora_only")
    check(directory, head | {f"{QUERY}.weight": merged(base, QUERY, 6 / 4)})
    adapter = read(directory)
    with convert(adapter.base, "classification", adapter=adapter) as converted:
        assert converted.labels == tuple(f"LABEL_{i}" for i in range(5))
        assert np.array_equal(converted.weights["head.output.bias"], head["classifier.bias"].numpy())


def test_bare_encoders_get_the_head_of_the_adapter(tmp_path: Path) -> None:
    """Their tensors have no prefix, and their configuration names a class without a head."""
    model = reference(SMALL["bert"], "classify")
    model.base_model.save_pretrained(tmp_path / "base")
    config = json.loads((tmp_path / "base/config.json").read_text())
    (tmp_path / "base/config.json").write_text(json.dumps(config | {"architectures": ["BertModel"], "id2label": None}))
    name = "base_model.model.classifier."
    head = {f"{name}weight": random(5, 48), f"{name}bias": random(5)}
    adapter = read(write(tmp_path / "base", product(QUERY) | head))
    assert adapter.settings["architectures"] == ["BertForSequenceClassification"]
    with convert(adapter.base, "classification", adapter=adapter) as converted:
        assert converted.width == 5
        a, b = product(QUERY).values()
        expected = model.state_dict()[f"{QUERY}.weight"] + 6 / 4 * (b @ a)
        assert np.allclose(converted.weights["encoder.layers.0.query.weight"], expected.numpy(), atol=1e-6)


def test_files_of_the_adapter_come_first(base: Path) -> None:
    directory = write(base, product(QUERY))
    assert is_adapter(directory)
    assert not is_adapter(base)
    assert read(directory).tokenizer.resolve() == base.resolve()
    assert read(directory).settings["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    (directory / "tokenizer.json").write_text("{}")
    (directory / "config.json").write_text(json.dumps({"id2label": {"0": "no", "1": "yes"}}))
    assert read(directory).tokenizer == directory
    assert read(directory).settings == {"id2label": {"0": "no", "1": "yes"}}


MODEL = f"base_model.model.{QUERY}"
REFUSED: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
    ({}, {"peft_type": "IA3"}, "peft_type is not supported, only LORA is; merge the adapter"),
    ({}, {"lora_bias": True}, "lora_bias is not supported; merge the adapter"),
    ({}, {"new\x1b": True}, "a setting is not supported"),
    ({}, {"init_lora_weights": "pissa_niter_4"}, "init_lora_weights has a value that changes the base"),
    ({}, {"init_lora_weights": []}, "init_lora_weights has a value that changes the base"),
    ({}, {"base_model_name_or_path": None}, "does not name the base of the adapter; add it"),
    ({}, {"base_model_name_or_path": "../gone"}, "neither a directory nor a valid hub id"),
    ({}, {"base_model_name_or_path": "../adapter"}, "is an adapter itself"),
    ({}, {"revision": 3}, "does not name the base"),
    ({}, {"r": 8}, "r is not the rank"),
    ({}, {"r": None}, "r is not the rank"),
    ({}, {"lora_alpha": None}, "lora_alpha has an invalid value"),
    ({}, {"lora_alpha": math.inf}, "lora_alpha has an invalid value"),
    ({}, {"rank_pattern": [1]}, "rank_pattern has an invalid value"),
    ({}, {"alpha_pattern": {"(a+)+$": 1}}, "alpha_pattern is not supported with a regular expression"),
    ({}, {"use_dora": True}, "no magnitudes of DoRA"),
    (product("bert.pooler.dense", columns=47), {}, "does not fit the shape of bert.pooler.dense"),
    (product("bert.other"), {}, r"no tensor bert.other.weight"),
    ({f"{MODEL}.lora_magnitude_vector": random(48)}, {}, "no magnitudes of DoRA"),
    ({f"{MODEL}.lora_magnitude_vector": random(47)}, {"use_dora": True}, "use_dora is not supported for"),
    ({f"{MODEL}.lora_B.bias": random(48)}, {}, f"the tensor {MODEL}.lora_B.bias of the adapter is not supported"),
    ({f"{MODEL}.lora_embedding_A": random(4, 48)}, {}, "no two matrices"),
    ({"bert.x": random(1)}, {}, "the tensor bert.x of the adapter is not supported"),
]


@pytest.mark.parametrize(("tensors", "changes", "expected"), REFUSED)
def test_other_adapters_are_refused(
    base: Path, tensors: dict[str, Tensor], changes: dict[str, Any], expected: str
) -> None:
    directory = write(base, product(QUERY) | tensors, **changes)
    with pytest.raises(ConversionError) as caught, read(directory).open():
        pass
    assert expected in str(caught.value)
    assert str(caught.value).isprintable()


def test_adapters_without_products_are_refused(base: Path) -> None:
    directory = write(base, {"base_model.model.classifier.bias": random(3)})
    with pytest.raises(ConversionError, match="the adapter has no matrices of LoRA"), read(directory).open():
        pass


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_adapters_are_imported(tmp_path: Path, base: Path, task: str) -> None:
    """sentence-transformers saves an adapter between its own files, which describe the pooling."""
    shutil.copytree(base, tmp_path / "base")
    directory = write(tmp_path / "base", product(QUERY))
    if task == "embed":
        make_sentence_encoder(directory, "mean")
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 32}')

    def load(source: Path) -> Artifact:
        artifact, _ = import_checkpoint(
            str(source),
            task,
            out=tmp_path / "out",
            precision="fp32",
            max_loss=0.5,
            accept_tokenizer=True,
            pooling="mean" if task == "embed" and source != directory else None,
            report=lambda _: None,
        )
        return artifact

    artifact = load(directory)
    for file in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(directory / file, tmp_path / "base")
    assert len(trunks.groups([artifact.path, load(tmp_path / "base").path])) == 1
    expected = merged(base, QUERY, 6 / 4).numpy()
    weights = read_weights(artifact.path / WEIGHTS)
    assert np.allclose(weights["encoder.layers.0.query.weight"], expected, rtol=1e-5, atol=1e-6)
    assert artifact.manifest.max_tokens == 32
    assert (artifact.manifest.embedding is not None) == (task == "embed")


FFN = "bert.encoder.layer.0.intermediate.dense"


def test_products_of_the_encoder_stay_apart_from_the_base(base: Path) -> None:
    adapter = read(write(base, product(QUERY) | product(FFN, rows=96) | product("bert.pooler.dense")))
    with convert(adapter.base, "classification", adapter=adapter) as converted:
        assert converted.merged is None
        apart = {name for name, weight in converted.weights.items() if isinstance(weight, Adapted)}
        assert apart == {"encoder.layers.0.query.weight", "encoder.layers.0.ffn_in.weight"}
        a, b = product("bert.pooler.dense").values()
        pooler = load_file(base / "model.safetensors")["bert.pooler.dense.weight"] + 6 / 4 * (b @ a)
        assert np.allclose(np.asarray(converted.weights["head.pooler.weight"]), pooler.numpy(), atol=1e-6)


BIAS = {f"base_model.model.{QUERY}.base_layer.bias": random(48, seed=3)}
WORDS = {
    f"base_model.model.{TABLE}.lora_embedding_A": random(4, 211),
    f"base_model.model.{TABLE}.lora_embedding_B": random(48, 4),
}
MERGED: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
    ({f"{MODEL}.lora_magnitude_vector": random(48)}, {"use_dora": True}, "use_dora is set"),
    (BIAS, {"bias": "lora_only"}, "it replaces encoder.layers.0.query.bias"),
    (WORDS, {}, "it changes the table encoder.embeddings.word.weight"),
    (product(KEY, rank=7), {"rank_pattern": {"key": 7}}, "its rank of 7 is large for encoder.layers.1.key.weight"),
]


@pytest.mark.parametrize(("tensors", "changes", "reason"), MERGED)
def test_adapters_that_cannot_stay_apart_are_merged_with_a_reason(
    base: Path, tensors: dict[str, Tensor], changes: dict[str, Any], reason: str
) -> None:
    adapter = read(write(base, product(QUERY) | tensors, **changes))
    with convert(adapter.base, "classification", adapter=adapter) as converted:
        assert reason in str(converted.merged)
        assert not any(isinstance(weight, Adapted) for weight in converted.weights.values())


def test_matrix_that_is_replaced_in_a_fused_one_keeps_no_adapter_apart(tmp_path: Path) -> None:
    """The checkpoint has query, key and value in one matrix, which the network has in three."""
    sizes = {"vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = Shape("modernbert", sizes | {"intermediate_size": 96, "pad_token_id": 0})
    reference(shape, "classify").save_pretrained(tmp_path / "base")
    whole = {"base_model.model.model.layers.0.attn.Wqkv.weight": random(144, 48)}
    products = product("model.layers.1.attn.Wqkv", rows=144)
    adapter = read(write(tmp_path / "base", products | whole))
    with convert(adapter.base, "classification", adapter=adapter) as converted:
        assert converted.merged == "it replaces encoder.layers.0.key.weight"
        assert not any(isinstance(weight, Adapted) for weight in converted.weights.values())


def test_number_that_is_not_finite_is_refused(base: Path) -> None:
    broken = product(QUERY)
    broken[f"{MODEL}.lora_B.weight"][3, 1] = math.nan
    adapter = read(write(base, broken))
    with pytest.raises(ModelError, match="not finite"), convert(adapter.base, "classification", adapter=adapter):
        pass
