"""Tests of MPNet and GPT-2: their networks compute the rows of transformers, and unsupported checkpoints are refused.

The reference computes each sequence alone: its padding is not ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftlet_models.architectures import gpt2, mpnet
from swiftlet_models.architectures.layers import causal_bias, position_bias
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.convert import ConvertedCheckpoint
from tests.support.checkpoints import (
    HEADS,
    Rows,
    Shape,
    Task,
    conversion,
    convert,
    our_rows,
    reference,
    relative_error,
    rows,
)
from tests.support.tiers import first

TOLERANCE: Final = {torch.float32: 1e-5, torch.float64: 1e-13}  # relative
LENGTHS: Final = [64, 1, 2, 3, 17, 63]
# The LayerNorm epsilons are so large that a wrong one changes the outputs visibly.
_MPNET: Final = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 66,
    "layer_norm_eps": 0.05,
}
_GPT2: Final = {
    "vocab_size": 211,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "layer_norm_epsilon": 0.05,
    "pad_token_id": 0,
}
SHAPES: Final = {
    "mpnet": Shape("mpnet", _MPNET),
    "mpnet-relu": Shape("mpnet", _MPNET | {"hidden_act": "relu", "num_attention_heads": 3}),
    "mpnet-base": Shape("mpnet", {"num_hidden_layers": 2, "max_position_embeddings": 514}),
    "gpt2": Shape("gpt2", _GPT2),
    "gpt2-narrow": Shape("gpt2", _GPT2 | {"n_inner": 32, "activation_function": "gelu"}),
    "gpt2-small": Shape("gpt2", {"n_layer": 2, "pad_token_id": 0}),
}
CASES: Final[list[tuple[str, Task]]] = [
    *(("mpnet", task) for task in ("classify", "qa", "fill-mask")),
    *(("mpnet-relu", task) for task in ("classify", "qa")),
    *((name, task) for name in ("gpt2", "gpt2-narrow") for task in ("classify", "qa", "score")),
]


@torch.no_grad()
def expected_rows(model: Any, task: Task, batch: Rows) -> Tensor:
    """Returns the logits (N, O) that transformers computes at the focus positions, each sequence alone."""
    found = []
    for one in batch.alone():
        out = model(input_ids=one.input_ids)
        if task == "classify":
            found.append(out.logits)
            continue
        logits = torch.stack([out.start_logits, out.end_logits], -1) if task == "qa" else out.logits
        found.append(logits[0][one.focus])
    return torch.cat(found)


def sequences(converted: ConvertedCheckpoint, task: Task, lengths: list[int]) -> Rows:
    """Returns random sequences without padding tokens. The classifier of a causal network reads the last token."""
    config = converted.model.encoder.config
    batch = rows(task, lengths, config.vocab_size)
    batch.input_ids[batch.mask] = batch.input_ids[batch.mask].clamp_min(2)
    if task != "classify" or not config.traits().causal:
        return batch
    first = torch.arange(len(lengths)) * batch.input_ids.shape[1]
    return Rows(batch.input_ids, batch.token_type_ids, batch.lengths, first + batch.lengths - 1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "task"), CASES)
def test_network_computes_the_rows_of_transformers(name: str, task: Task, dtype: torch.dtype) -> None:
    """In a padded batch as alone. In float64 all digits agree."""
    model = reference(SHAPES[name], task)
    converted = conversion(model, task)
    batch = sequences(converted, task, LENGTHS)
    expected = expected_rows(model.to(dtype), task, batch)
    ours = converted.model.to(dtype)

    assert relative_error(our_rows(ours, batch), expected) <= TOLERANCE[dtype]
    alone = torch.cat([our_rows(ours, one) for one in batch.alone()])
    assert relative_error(alone, expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("name", "task"),
    first([("mpnet-base", "qa"), ("gpt2-small", "classify"), ("gpt2-small", "score")]),
)
def test_released_shapes_compute_the_rows_of_transformers(name: str, task: Task) -> None:
    """Full widths and vocabularies, with few layers to save time. 512 tokens reach every bucket of distances."""
    model = reference(SHAPES[name], task)
    converted = conversion(model, task)
    batch = sequences(converted, task, [512] if task != "score" else [100])

    error = relative_error(our_rows(converted.model, batch), expected_rows(model, task, batch))
    assert error <= TOLERANCE[torch.float32]


def test_last_feature_of_gpt2_is_normed() -> None:
    model = reference(SHAPES["gpt2"], "score")
    ours = conversion(model, "score").model
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        expected = model(input_ids=ids, output_hidden_states=True).hidden_states
        actual = ours.encoder.features(ids, ids, torch.ones_like(ids, dtype=torch.bool))

    assert len(actual) == len(expected) == 4
    assert all(relative_error(a[0], e[0]) <= 1e-5 for a, e in zip(actual, expected, strict=True))


def test_position_bias_has_the_buckets_of_transformers() -> None:
    """For every distance, also at the boundaries between buckets, where rounding could differ."""
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = torch.arange(-1100, 1101)
    bias = mpnet.Config().traits().position_bias
    expected = MPNetEncoder.relative_position_bucket(distances)

    assert [bias.bucket(one) for one in distances.tolist()] == expected.tolist()
    table = torch.arange(32.0)[:, None]
    assert position_bias(table, bias.boundaries, 1101)[0, 0, 1100].tolist() == expected[: 1100 + 1].tolist()
    assert position_bias(table, bias.boundaries, 1101)[0, 0, 0].tolist() == expected[1100:].tolist()


def test_causal_bias_excludes_the_tokens_after_each_token() -> None:
    assert (causal_bias(3, torch.zeros(1))[0, 0] == 0).tolist() == [
        [True, False, False],
        [True, True, False],
        [True] * 3,
    ]


def test_base_shapes_have_the_published_parameter_counts() -> None:
    with torch.device("meta"):
        base, small = mpnet.Encoder(mpnet.Config(max_position_embeddings=514)), gpt2.Encoder(gpt2.Config())

    assert sum(one.numel() for one in small.parameters()) == 124_439_808
    assert sum(one.numel() for one in base.parameters()) == 108_895_872


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "reorder_and_upcast_attn", True),
        ("gpt2", "add_cross_attention", True),
        ("gpt2", "n_inner", 0),
        ("mpnet", "relative_attention_num_buckets", 16),
    ],
)
def test_unsupported_settings_are_refused_by_name(tmp_path: Path, name: str, setting: str, value: object) -> None:
    reference(SHAPES[name], "qa").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {setting: value}))

    with pytest.raises(ConversionError, match=setting):
        convert(tmp_path, *HEADS["qa"])


def _changed(tmp_path: Path, **changes: Tensor | None) -> Path:
    """Writes a checkpoint of GPT-2 whose tensors are replaced, added, or left out if they are None."""
    reference(SHAPES["gpt2"], "score").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


def test_masks_of_older_checkpoints_are_ignored(tmp_path: Path) -> None:
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64), "transformer.h.0.attn.masked_bias": torch.ones(1)}

    assert set(convert(_changed(tmp_path, **masks), *HEADS["score"]).ignored) == set(masks)


def test_fused_tensor_must_hold_its_parameters(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"c_attn\.bias cannot be split into 3 parameters"):
        convert(_changed(tmp_path, **{"transformer.h.0.attn.c_attn.bias": torch.ones(145)}), *HEADS["score"])
    with pytest.raises(ConversionError, match=r"layers\.0\.(query|key)\.weight.* is missing"):
        convert(_changed(tmp_path, **{"transformer.h.0.attn.c_attn.weight": None}), *HEADS["score"])


def test_language_model_must_be_tied(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"lm_head\.weight is not tied"):
        convert(_changed(tmp_path, **{"lm_head.weight": torch.ones(211, 48)}), *HEADS["score"])
