"""Tests of ModernBERT: its network computes the rows of transformers, from settings of versions 4 and 5.

The reference computes each sequence alone: its padding beyond a window gives NaN in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from swiftlet_models.architectures import modernbert
from swiftlet_models.checkpoint_tensors import ConversionError
from tests.support.checkpoints import (
    AUTO,
    HEADS,
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

TOLERANCE: Final = {torch.float32: 1e-5, torch.float64: 1e-6}  # relative; the softmax of transformers is in fp32
# The epsilon is so large that a wrong one changes the outputs visibly. Layers 0 and 3 attend to all tokens.
_SMALL: Final = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "norm_eps": 0.05,
    "local_attention": 16,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
}
_BIASES: Final = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
_ROTATIONS: Final = {
    "full_attention": {"rope_type": "default", "rope_theta": 300.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}
SHAPES: Final = {
    "small": Shape("modernbert", _SMALL),
    "biases": Shape("modernbert", _SMALL | _BIASES | {"classifier_pooling": "mean", "decoder_bias": False}),
    "others": Shape(
        "modernbert",
        _SMALL
        | {"layer_types": [*["full_attention", "sliding_attention"] * 2, "full_attention"]}
        | {"hidden_activation": "relu", "classifier_activation": "gelu_new", "rope_parameters": _ROTATIONS},
    ),
    "base": Shape("modernbert", {"num_hidden_layers": 4}),
}
TASKS: Final[tuple[Task, ...]] = ("classify", "qa", "fill-mask", "entities")


@pytest.mark.parametrize("name", ["small", "biases", "others"])
@pytest.mark.parametrize("task", TASKS)
def test_network_computes_the_rows_of_transformers(name: str, task: Task) -> None:
    """In a padded batch as alone."""
    model = reference(SHAPES[name], task)
    ours = conversion(model, task).model
    batch = rows(task, [64, 1, 2, 17, 63], 211)
    for dtype, tolerance in TOLERANCE.items():
        expected = rows_alone(model.to(dtype), task, batch)
        ours = ours.to(dtype)

        assert relative_error(our_rows(ours, batch), expected) <= tolerance
        alone = torch.cat([our_rows(ours, own) for own in batch.alone()])
        assert relative_error(alone, expected) <= tolerance


@pytest.mark.exhaustive
def test_released_shape_computes_the_rows_of_transformers() -> None:
    """Full widths and vocabulary, with few layers to save time, and more tokens than a window has."""
    model = reference(SHAPES["base"], "classify")
    batch = rows("classify", [1000, 100], 50000)

    error = relative_error(our_rows(conversion(model, "classify").model, batch), rows_alone(model, "classify", batch))
    assert error <= TOLERANCE[torch.float32]


def save(directory: Path, **changes: Any) -> None:
    """Writes a classifier, and changes its configuration."""
    model = AUTO["classify"].from_config(SHAPES["small"].config())
    randomise(model)
    model.save_pretrained(directory)
    edit(directory / "config.json", **changes)


VERSION_4: Final = {
    "layer_types": None,
    "rope_parameters": None,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
}


def test_settings_of_both_versions_of_transformers_are_the_same_network(tmp_path: Path) -> None:
    save(tmp_path)
    new = convert(tmp_path, *HEADS["classify"]).config
    edit(tmp_path / "config.json", **VERSION_4)
    assert convert(tmp_path, *HEADS["classify"]).config == new


def test_layers_share_their_angles_without_a_local_theta() -> None:
    traits = modernbert.Config(local_rope_theta=None).traits()
    assert {part.theta for part in traits.attention} == {160000.0}
    assert [part.window for part in traits.attention[:4]] == [None, 128, 128, None]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_types": ["sliding_attention"] * 5}, "layer_types is not supported"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types is not supported"),
        ({"layer_types": 3}, "layer_types is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}, "rope_type or a setting"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters has an invalid value"),
        ({"rope_parameters": [1]}, "rope_parameters has an invalid value"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, "global_rope_theta has an invalid value"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
        ({"max_position_embeddings": 1 << 17}, "max_position_embeddings has an invalid value"),
        ({"classifier_pooling": "last"}, "classifier_pooling 'last' is not one of cls, mean"),
        ({"num_attention_heads": 48}, "odd"),
        ({"attention_bias": True}, "is not in the checkpoint"),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    save(tmp_path, **changes)
    with pytest.raises(ConversionError, match=reason):
        convert(tmp_path, *HEADS["classify"])


def test_head_of_another_task_is_not_read(tmp_path: Path) -> None:
    """The heads have the same tensors, but for their outputs."""
    save(tmp_path)
    with pytest.raises(ConversionError, match="no head for this task"):
        convert(tmp_path, *HEADS["fill-mask"])
