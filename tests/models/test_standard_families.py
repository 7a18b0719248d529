"""Tests of the families whose layers have one form: their networks compute the rows of transformers.

The reference computes each sequence alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

from swiftlet_models.architectures.descriptions import t5  # type: ignore[attr-defined]  # found at run time
from swiftlet_models.architectures.traits import PositionBias
from swiftlet_models.artifact import Embedding
from swiftlet_models.checkpoint_tensors import ConversionError
from tests.support.checkpoints import (
    Shape,
    Task,
    conversion,
    convert,
    our_rows,
    randomise,
    reference,
    relative_error,
    rows,
    rows_alone,
)
from tests.support.sentence_checkpoints import edit

TOLERANCE: Final = {torch.float32: 1e-5, torch.float64: 1e-6}  # relative; RMSNorms of transformers are in fp32
VOCABULARY: Final = 211
_IDS: Final = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
# Epsilons are so large that a wrong one changes the outputs visibly.
_SMALL: Final = _IDS | {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
_RMS: Final = _SMALL | {"rms_norm_eps": 0.05}
_NORM: Final = _SMALL | {"layer_norm_eps": 0.05}
_ANGLES: Final = {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
_GEMMA: Final = _RMS | {
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 9,
    "sliding_window": 14,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "use_bidirectional_attention": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 300.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    },
}
_T5: Final = _IDS | {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 3,
    "num_heads": 4,
    "layer_norm_epsilon": 0.05,
}
SHAPES: Final = {
    "qwen3": Shape("qwen3", _RMS | _ANGLES | {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-biases": Shape("qwen3", _RMS | {"num_key_value_heads": 4, "head_dim": 8, "attention_bias": True}),
    "qwen2": Shape("qwen2", _RMS | _ANGLES | {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2-both-ways": Shape("qwen2", _RMS | {"num_key_value_heads": 4, "is_causal": False}),
    "eurobert": Shape("eurobert", _RMS | _ANGLES | {"tie_word_embeddings": True}),
    "eurobert-mean": Shape(
        "eurobert",
        _RMS
        | {"num_key_value_heads": 2, "mlp_bias": True, "attention_bias": True}
        | {"classifier_pooling": "mean", "tie_word_embeddings": True},
    ),
    "eurobert-bos": Shape("eurobert", _RMS | {"classifier_pooling": "bos", "hidden_act": "gelu"}),
    "nomic": Shape("nomic_bert", _NORM | _ANGLES),
    "gte": Shape("gte", _NORM | _ANGLES),
    "gte-two-types": Shape("gte", _NORM | {"type_vocab_size": 2}),
    "gte-no-types": Shape("gte", _NORM | {"type_vocab_size": 0}),
    "jina": Shape("jina_embeddings_v3", _NORM | _ANGLES),
}
CASES: Final[tuple[tuple[str, Task], ...]] = (
    *((name, "classify") for name in SHAPES),
    *((name, "entities") for name in ("eurobert", "nomic", "gte", "jina")),
    *((name, "fill-mask") for name in ("eurobert", "eurobert-mean", "nomic", "gte", "jina")),
    *((name, "qa") for name in ("qwen3", "qwen2", "jina")),
    ("qwen3", "score"),
    ("qwen2", "score"),
)


def batch_for(name: str, task: Task) -> Any:
    batch = rows(task, [64, 1, 2, 17, 63], VOCABULARY)
    if name.startswith("qwen") and task == "classify":  # a causal network is read at the last token
        batch.focus[:] = torch.arange(5) * 64 + batch.lengths - 1
    return batch


@pytest.mark.parametrize(("name", "task"), CASES)
def test_network_computes_the_rows_of_transformers(name: str, task: Task) -> None:
    """In a padded batch as alone."""
    model = reference(SHAPES[name], task)
    ours = conversion(model, task).model
    batch = batch_for(name, task)
    for dtype, tolerance in TOLERANCE.items():
        model, ours = model.to(dtype), ours.to(dtype)
        expected = rows_alone(model, task, batch)

        assert relative_error(our_rows(ours, batch), expected) <= tolerance


ENCODERS: Final[Mapping[str, tuple[Any, Mapping[str, Any]]]] = {
    "gemma": (transformers.Gemma3TextConfig, _GEMMA),
    "gemma-pattern": (transformers.Gemma3TextConfig, _GEMMA | {"layer_types": None, "num_hidden_layers": 7}),
    "t5": (transformers.T5Config, _T5),
    "t5-gated": (transformers.T5Config, _T5 | {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8}),
    "qwen3": (transformers.Qwen3Config, SHAPES["qwen3"].settings),
    "qwen2": (transformers.Qwen2Config, SHAPES["qwen2"].settings),
}


def encoder(name: str) -> Any:
    """Returns a network of transformers without a head."""
    config_class, settings = ENCODERS[name]
    config = config_class(**settings, attn_implementation="eager")
    model = transformers.T5EncoderModel(config) if name.startswith("t5") else transformers.AutoModel.from_config(config)
    randomise(model)
    return model.eval()


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_encoder_computes_the_vectors_of_transformers(name: str, pooling: Any, tmp_path: Path) -> None:
    model = encoder(name)
    model.save_pretrained(tmp_path)
    converted = convert(tmp_path, "embedding", "vocabulary", embedding=Embedding(pooling))
    batch = rows("classify", [64, 1, 2, 17, 63], VOCABULARY)
    batch.focus[:] = torch.arange(5) * 64 + batch.lengths - 1
    hidden = [model(input_ids=own.input_ids).last_hidden_state[0] for own in batch.alone()]
    expected = torch.stack([row[-1] if pooling == "last" else row.mean(0) for row in hidden])

    assert relative_error(our_rows(converted.model, batch), expected) <= TOLERANCE[torch.float32]


@torch.no_grad()
def test_original_checkpoint_of_nomic_is_the_same_network(tmp_path: Path) -> None:
    """transformers writes its tensors, and its settings have names of their own."""
    model = reference(SHAPES["nomic"], "fill-mask")
    model.save_pretrained(tmp_path)
    expected = convert(tmp_path, "masked_lm", "vocabulary")
    own = {
        "n_embd": 48,
        "n_head": 4,
        "n_inner": 96,
        "n_layer": 4,
        "n_positions": 64,
        "rotary_emb_base": 77,
        "layer_norm_epsilon": 0.05,
        "activation_function": "swiglu",
        "vocab_size": VOCABULARY,
        "type_vocab_size": 2,
        "model_type": "nomic_bert",
    }
    (tmp_path / "config.json").write_text(json.dumps(own), "utf-8")
    original = convert(tmp_path, "masked_lm", "vocabulary")

    assert {**original.config, "head_dim": 12} == expected.config
    edit(tmp_path / "config.json", prenorm=True)
    with pytest.raises(ConversionError, match="prenorm True is not supported"):
        convert(tmp_path, "masked_lm", "vocabulary")


_YARN: Final = {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("gemma", {"use_bidirectional_attention": None}, "generators of text are not supported"),
        ("gemma", {"layer_types": ["full_attention"] * 3}, "layer_types does not name each layer"),
        ("gemma", {"layer_types": ["linear_attention"] * 4}, "layer_types is not supported"),
        ("gemma", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping 30.0 is not supported"),
        ("gemma", {"rope_parameters": [1]}, "rope_parameters has an invalid value"),
        ("gemma", {"rope_parameters": {"full_attention": {"factor": 8.0}}}, "rope_type or a setting"),
        ("gemma", {"sliding_window": 0}, "sliding_window has an invalid value"),
        ("gemma", {"max_position_embeddings": 131072}, "max_position_embeddings has an invalid value"),
        ("qwen2", {"auto_map": {}}, "Set is_causal to false if it does"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "layer_types is not supported"),
        ("qwen3", {"layer_types": 3}, "layer_types is not supported"),
        ("qwen3", {"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ("qwen3", {"num_key_value_heads": 4}, "4 heads of keys do not fit 4 heads of queries"),
        ("qwen3", {"head_dim": 15}, "odd"),
        ("qwen3", {"attention_bias": True}, "is not in the checkpoint"),
        ("qwen3", _YARN, "rope_type or a setting"),
        ("qwen3", {"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ("t5", {"feed_forward_proj": "mixed-gelu"}, "feed_forward_proj has an invalid value"),
        ("t5", {"feed_forward_proj": "swish"}, "hidden_act 'swish' is not one of"),
        ("t5", {"relative_attention_num_buckets": 30}, "relative_attention_num_buckets is no multiple of 4"),
        ("t5", {"relative_attention_max_distance": 8}, "relative_attention_max_distance is shorter"),
        ("t5", {"d_kv": 24}, "a head is 24 wide, but in the parameters 16"),
    ],
)
def test_other_forms_are_refused(name: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    encoder(name).save_pretrained(tmp_path)
    edit(tmp_path / "config.json", **changes)
    with pytest.raises(ConversionError, match=reason):
        convert(tmp_path, "embedding", "vocabulary", embedding=Embedding("mean"))


def test_buckets_of_distances_are_those_of_t5() -> None:
    distances = torch.arange(-300, 301)
    for buckets, longest in ((32, 128), (8, 128), (64, 250), (32, 9)):
        config = t5.Config(relative_attention_num_buckets=buckets, relative_attention_max_distance=longest)
        bias = PositionBias(config.boundaries())
        expected = T5Attention._relative_position_bucket(distances, True, buckets, longest)  # type: ignore[no-untyped-call]

        assert [bias.bucket(int(d)) for d in distances] == expected.tolist()
