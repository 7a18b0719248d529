"""JinaBERT against a reference that is written here, because transformers does not have the network.

The reference computes each sequence alone, from the checkpoint's tensors.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from swiftlet_models.architectures import name_of
from swiftlet_models.artifact import Embedding
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.encodings import Encoding
from swiftlet_models.folding import fold
from swiftlet_models.graphs.ragged import in_fp32
from swiftlet_serve.engines.native import Native
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline import probe
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.types import Batch
from tests.goldens.cases import HERE
from tests.support import native_kernels
from tests.support.checkpoints import convert, our_rows, relative_error, rows
from tests.support.sentence_checkpoints import edit

WIDTH, LAYERS, INNER, VOCABULARY = 96, 3, 160, 300
EPSILON: Final = 0.05  # so large that a wrong one is visible
# Heads that are no power of 2 have slopes of their own. The last two forms have norms of query and key.
FORMS: Final = {"geglu": 6, "reglu": 2, "original": 3, "post": 6, "devlin": 6}
CODE: Final = {"post": "v2-qk-post-norm", "devlin": "v2-qk-devlin-norm-1e-2"}
LENGTHS: Final = (64, 1, 2, 17, 63)


def settings(form: str, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {"AutoModel": f"jinaai/jina-bert-{CODE.get(form, 'implementation')}--modeling_bert.JinaBertModel"},
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu" if form in CODE else form,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "intermediate_size": INNER,
        "max_position_embeddings": 64,
        "vocab_size": VOCABULARY,
        "layer_norm_eps": EPSILON,
        **more,
    }


def tensors(form: str, labels: int = 0) -> dict[str, Tensor]:
    """Random tensors with the names of released checkpoints."""
    random = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)

    found = {
        "embeddings.word_embeddings.weight": normal(VOCABULARY, WIDTH) * 5,
        "embeddings.token_type_embeddings.weight": normal(2, WIDTH) * 5,
        "pooler.dense.weight": normal(WIDTH, WIDTH),
        "pooler.dense.bias": normal(WIDTH),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            found[f"{layer}attention.{name}.weight"] = normal(WIDTH, WIDTH) * 2
            found[f"{layer}attention.{name}.bias"] = normal(WIDTH)
        norms.append(f"{layer}attention.output.LayerNorm")
        if form in CODE:
            norms += [f"{layer}attention.self.layer_norm_{part}" for part in "qk"]
        if form == "post":
            norms += [f"{layer}layer_norm_{number}" for number in (1, 2)]
            found[f"{layer}mlp.up_gated_layer.weight"] = normal(2 * INNER, WIDTH)
            maps = {"mlp.down_layer": (WIDTH, INNER)}
        elif form == "original":
            maps = {"intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER)}
            norms.append(f"{layer}output.LayerNorm")
        else:
            found[f"{layer}mlp.gated_layers.weight"] = normal(2 * INNER, WIDTH)
            maps = {"mlp.wo": (WIDTH, INNER)}
            norms.append(f"{layer}mlp.layernorm")
        for name, shape in maps.items():
            found |= {f"{layer}{name}.weight": normal(*shape), f"{layer}{name}.bias": normal(shape[0])}
    found |= {f"{name}.weight": 1 + normal(WIDTH) for name in norms} | {f"{name}.bias": normal(WIDTH) for name in norms}
    if labels:
        found = {f"bert.{name}": tensor for name, tensor in found.items()}
        found |= {"classifier.weight": normal(labels, WIDTH), "classifier.bias": normal(labels)}
    return found


def save(directory: Path, form: str, heads: int, labels: int = 0, **more: Any) -> dict[str, Tensor]:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings(form, heads, **more)), "utf-8")
    found = tensors(form, labels)
    save_file(found, directory / "model.safetensors")
    return found


def slopes(heads: int) -> list[float]:
    """As the paper has them for powers of 2, and every second one of the next power for the rest."""
    if math.log2(heads).is_integer():
        return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return slopes(power) + slopes(2 * power)[::2][: heads - power]


def hidden_states(own: dict[str, Tensor], form: str, heads: int, ids: Tensor, types: Tensor) -> Tensor:
    """Returns the last hidden states (S, H) of one sequence."""
    own = {name.removeprefix("bert."): tensor for name, tensor in own.items()}

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, own[f"{name}.weight"], own.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), own[f"{name}.weight"], own[f"{name}.bias"], EPSILON)

    words, kinds = own["embeddings.word_embeddings.weight"], own["embeddings.token_type_embeddings.weight"]
    x = norm("embeddings.LayerNorm", words[ids] + kinds[types])
    places = torch.arange(len(ids))
    bias = -torch.tensor(slopes(heads))[:, None, None] * (places[None] - places[:, None]).abs()
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        query, key, value = (linear(f"{layer}attention.self.{name}", x) for name in ("query", "key", "value"))
        if form in CODE:
            query = norm(f"{layer}attention.self.layer_norm_q", query)
            key = norm(f"{layer}attention.self.layer_norm_k", key)
        query, key, value = (y.unflatten(1, (heads, -1)).transpose(0, 1) for y in (query, key, value))
        scores = query @ key.transpose(1, 2) / math.sqrt(WIDTH // heads) + bias
        attended = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        before = x
        x = norm(f"{layer}attention.output.LayerNorm", x + linear(f"{layer}attention.output.dense", attended))
        if form == "post":
            x = norm(f"{layer}layer_norm_1", before + x)
            inner, gate = linear(f"{layer}mlp.up_gated_layer", x).chunk(2, 1)
            x = norm(f"{layer}layer_norm_2", x + linear(f"{layer}mlp.down_layer", inner * F.gelu(gate)))
            continue
        if form == "original":
            inner = F.gelu(linear(f"{layer}intermediate.dense", x))
            x = norm(f"{layer}output.LayerNorm", x + linear(f"{layer}output.dense", inner))
            continue
        gate, inner = linear(f"{layer}mlp.gated_layers", x).chunk(2, 1)
        inner = (F.relu(gate) if form == "reglu" else F.gelu(gate)) * inner
        x = norm(f"{layer}mlp.layernorm", x + linear(f"{layer}mlp.wo", inner))
    return x


@pytest.mark.parametrize(("form", "heads"), FORMS.items())
def test_every_engine_computes_the_rows_of_the_reference(form: str, heads: int, tmp_path: Path) -> None:
    """In one batch as alone, and in int8 nearly so."""
    own = save(tmp_path, form, heads)
    converted = convert(tmp_path, "embedding", "vocabulary", embedding=Embedding("mean"))
    batch = rows("classify", [*LENGTHS], VOCABULARY)
    alone = batch.alone()
    expected = torch.stack(
        [hidden_states(own, form, heads, one.input_ids[0], one.token_type_ids[0]).mean(0) for one in alone]
    )
    assert relative_error(our_rows(converted.model, batch), expected) <= 1e-5

    folded = fold(
        converted.architecture, converted.config, native_kernels.weights(converted.model), embedding=Embedding("mean")
    )
    encodings = [
        Encoding(one.input_ids[0].numpy(), one.token_type_ids[0].numpy(), np.zeros(1, np.int64)) for one in alone
    ]
    found = np.concatenate(RaggedOnnx(folded, in_fp32, 1).run(Batch.of(encodings)))
    assert relative_error(torch.from_numpy(found), expected) <= 1e-5
    engine = Native(native_kernels.best(), folded)
    together = np.concatenate(engine.run(Batch.of(encodings)))
    assert relative_error(torch.from_numpy(together), expected) <= 0.1
    assert np.array_equal(together, np.concatenate([engine.run(Batch.of([one]))[0] for one in encodings]))


@pytest.mark.parametrize("labels", [1, 3])
def test_classifier_reads_the_pooler(labels: int, tmp_path: Path) -> None:
    """As jina-reranker-v1 has it, with one label."""
    own = save(tmp_path, "geglu", 6, labels, id2label={str(i): f"l{i}" for i in range(labels)})
    converted = convert(tmp_path, "classification")
    batch = rows("classify", [*LENGTHS], VOCABULARY)
    expected = []
    for one in batch.alone():
        first = hidden_states(own, "geglu", 6, one.input_ids[0], one.token_type_ids[0])[0]
        pooled = torch.tanh(F.linear(first, own["bert.pooler.dense.weight"], own["bert.pooler.dense.bias"]))
        expected.append(F.linear(pooled, own["classifier.weight"], own["classifier.bias"]))
    assert (converted.architecture, converted.width) == ("jina_bert", labels)
    assert relative_error(our_rows(converted.model, batch), torch.stack(expected)) <= 1e-5


def test_directory_of_sentence_transformers_is_served_up_to_8192_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the vectors of the reference."""
    monkeypatch.setattr(probe, "MAX_WORK", 10e6)  # a few of the built-in texts
    words = (HERE / "vocab.txt").read_text("utf-8").splitlines()
    monkeypatch.setattr("tests.models.test_jina_bert.VOCABULARY", len(words))
    own = save(tmp_path / "model", "geglu", 6, vocab_size=len(words), max_position_embeddings=8192)
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(words), "utf-8")
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"))
    modules = [
        {"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (kind, path) in enumerate(kinds)
    ]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules), "utf-8")
    (tmp_path / "model" / "1_Pooling").mkdir()
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', "utf-8")
    artifact, _ = import_checkpoint(
        str(tmp_path / "model"), None, tmp_path / "out", name="m", precision="fp32", max_loss=0.5, report=lambda _: None
    )
    assert (artifact.manifest.task, artifact.manifest.max_tokens) == ("embed", 8192)
    texts = ["A warm film.", "no " * 400]
    loaded = load_model(artifact.path, "torch")
    rows_of_texts = [loaded.task.encode(loaded.task.Request(inputs=text))[0].input_ids for text in texts]
    found = respond(loaded, [{"inputs": text} for text in texts])
    for ids, vector in zip(rows_of_texts, found, strict=True):
        expected = hidden_states(own, "geglu", 6, torch.tensor(ids), torch.zeros(len(ids), dtype=torch.long)).mean(0)
        assert relative_error(torch.tensor(vector), expected[None]) <= 1e-5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"feed_forward_type": "swiglu"}, "feed_forward_type 'swiglu' is not one of original, geglu, reglu"),
        ({"feed_forward_type": "original"}, "is not part of jina_bert as config.json describes it"),
        ({"num_attention_heads": 5}, "does not divide"),
        ({"max_position_embeddings": 1 << 20}, "max_position_embeddings has an invalid value"),
        ({"is_decoder": True}, "is_decoder True is not supported"),
        ({"auto_map": None, "position_embedding_type": "rotary"}, "position_embedding_type 'rotary' is not supported"),
    ],
)
def test_other_forms_are_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    save(tmp_path, "geglu", 6)
    edit(tmp_path / "config.json", **changes)
    with pytest.raises(ConversionError, match=reason):
        convert(tmp_path, "embedding", embedding=Embedding("mean"))


def test_a_bert_with_code_of_its_own_stays_a_bert() -> None:
    assert name_of({"model_type": "bert", "auto_map": {}}) == "bert"
    assert name_of({"model_type": "bert", "position_embedding_type": "alibi", "auto_map": {}}) == "jina_bert"
