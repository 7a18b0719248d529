"""Qwen2 (Yang et al. 2024, arXiv:2407.10671) as a model of vectors and of classes: a causal transformer.

Qwen3 without the norms of heads, and with biases of query, key and value. Follows `modeling_qwen2.py` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count
from swiftlet_models.architectures.traits import Traits

from . import qwen3


@dataclass(frozen=True)
class Config(qwen3.Config):
    """The settings, named as in transformers. The defaults are the released 0.5B."""

    hidden_size: int = 896
    intermediate_size: int = 4864
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 14
    num_key_value_heads: Count | None = 2
    head_dim: int | None = None

    def traits(self) -> Traits:
        return replace(super().traits(), head_norm=False)


if not describing(__name__):
    from .standard import Encoder as Encoder


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint, as for Qwen3.

    Raises:
        ValueError: the layers or the angles have a form that is not implemented, or nothing says where tokens attend.
    """
    if "auto_map" in settings and "is_causal" not in settings:  # as in gte-Qwen2
        raise ValueError(
            "there is code of the checkpoint (auto_map), which may attend in both directions. Set is_causal to false "
            "if it does, and else to true."
        )
    return qwen3.translate(settings)


CHECKPOINTS: Final = replace(
    qwen3.CHECKPOINTS,
    omitted=(
        (
            r"encoder\.layers\.\d+\.(output|ffn_gate|ffn_in|ffn_out)\.bias|classification\.output\.bias|causal_lm\.bias",
            None,
        ),
    ),
    translate=translate,
)
