"""Checkpoints of transformers: the names of a family's parameters and settings, and names that families share.

Patterns are regular expressions. A name here has the prefix of its part: `encoder`, or a head such as `masked_lm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Names = tuple[tuple[str, str], ...]
"""Patterns of names in transformers, each with its replacement, in the order in which they apply."""


@dataclass(frozen=True)
class Checkpoints:
    """How checkpoints hold the networks of a family."""

    names: Names
    of_head: Mapping[str, Names] = field(default_factory=dict)
    """Names that differ in some heads, and apply first."""
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Tensors that hold several parameters side by side, as patterns with the names of the parts."""
    transposed: tuple[str, ...] = ()
    """Patterns of parameters that are stored transposed, by their names here."""
    omitted: tuple[tuple[str, str | None], ...] = ()
    """Patterns of parameters that are left out because they are zero, each with the setting that adds them, if any."""
    unread: tuple[str, ...] = ()
    """Patterns of tensors that are always there but not always read, by their names here, or by their
    own if `names` has no rule for them."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that change the computation, with the only values that are implemented."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of transformers that differ from those of `Config`."""
    said_by: Mapping[str, Any] = field(default_factory=dict)
    """Settings that tell the family, if `model_type` is that of another."""
    translate: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Gives settings the names in `Config`. Raises ValueError for a form that is not implemented."""


OUTPUTS: Final[Names] = ((r"^classifier\.", r"classification.output."), (r"^qa_outputs\.", r"token.output."))
LABELS_OF_TOKENS: Final[Mapping[str, Names]] = {"token": ((r"^classifier\.", r"token.output."),)}


def embedding_names(prefix: str, tables: str = "word|position|token_type") -> Names:
    """Returns the names of BERT's embeddings with another prefix."""
    return (
        (rf"^({prefix}\.)?embeddings\.({tables})_embeddings\.", r"encoder.embeddings.\2."),
        (rf"^({prefix}\.)?embeddings\.LayerNorm\.", r"encoder.embeddings.norm."),
    )


def feed_forward_names(prefix: str) -> Names:
    """Returns the names of the feed-forward networks of BERT's layers with another prefix."""
    layer = rf"^({prefix}\.)?encoder\.layer\.(\d+)\."
    return (
        (layer + r"intermediate\.dense\.", r"encoder.layers.\2.ffn_in."),
        (layer + r"output\.dense\.", r"encoder.layers.\2.ffn_out."),
        (layer + r"output\.LayerNorm\.", r"encoder.layers.\2.ffn_norm."),
    )


def encoder_names(prefix: str) -> Names:
    """Returns the names of BERT's encoder with another prefix."""
    layer = rf"^({prefix}\.)?encoder\.layer\.(\d+)\."
    return (
        *embedding_names(prefix),
        (layer + r"attention\.self\.", r"encoder.layers.\2."),
        (layer + r"attention\.output\.dense\.", r"encoder.layers.\2.output."),
        (layer + r"attention\.output\.LayerNorm\.", r"encoder.layers.\2.attention_norm."),
        *feed_forward_names(prefix),
    )


def masked_lm_names(transform: str, predictions: str, norm: str = "LayerNorm") -> Names:
    """Returns the names of a head that fills masks: patterns of the module that transforms, and of the predictions."""
    return (
        (rf"^{transform}\.dense\.", r"masked_lm.transform."),
        (rf"^{transform}\.{norm}\.", r"masked_lm.norm."),
        (rf"^{predictions}\.bias$", r"masked_lm.bias"),
        (rf"^{predictions}\.decoder\.", r"masked_lm.decoder."),
    )


PREDICTIONS: Final = masked_lm_names(r"cls\.predictions\.transform", r"cls\.predictions")
LM_HEAD: Final = masked_lm_names(r"lm_head", r"lm_head", "layer_norm")

# The layers of Llama, without their norms, which the newer families have.
_LAYER: Final = r"^((?:\w+\.)*)layers?\.(\d+)\."
LAYERS: Final = (
    *(
        (_LAYER + rf"self_attn\.{name[0]}_proj\.", rf"encoder.layers.\2.{name}.")
        for name in ("query", "key", "value", "output")
    ),
    *((_LAYER + rf"self_attn\.{name[0]}_norm\.", rf"encoder.layers.\2.{name}_norm.") for name in ("query", "key")),
    (_LAYER + r"mlp\.gate_proj\.", r"encoder.layers.\2.ffn_gate."),
    (_LAYER + r"mlp\.up_proj\.", r"encoder.layers.\2.ffn_in."),
    (_LAYER + r"mlp\.down_proj\.", r"encoder.layers.\2.ffn_out."),
)


def norm_names(**names: str) -> Names:
    """Returns the names of a layer's norms: their names here, and patterns of those in transformers."""
    return tuple((_LAYER + rf"{theirs}\.", rf"encoder.layers.\2.{ours}.") for ours, theirs in names.items())


def rotation(settings: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
    """Returns the settings of the angles in `rope_parameters` of transformers 5, or those of one kind of layers.

    Raises:
        ValueError: the angles have a form that is not implemented.
    """
    given = settings.get("rope_parameters") or {}
    if kind and isinstance(given, dict):
        given = given.get(kind) or {}
    if not isinstance(given, dict):
        raise ValueError("rope_parameters has an invalid value.")  # noqa: TRY004  # of a file
    plain = {"rope_type": "default", "partial_rotary_factor": 1.0, "rope_theta": 0}
    if {**plain, **given, "rope_theta": 0} != plain:
        raise ValueError("rope_parameters has a rope_type or a setting that is not supported, only 'default' is.")
    return {"rope_theta": given["rope_theta"]} if "rope_theta" in given else {}


def translate_rotary(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint, of transformers 4 or 5, under the names of `standard.RotaryConfig`.

    Raises:
        ValueError: the angles have a form that is not implemented.
    """
    own = {**settings, **rotation(settings)}
    if "layer_norm_eps" in own:
        own["layer_norm_epsilon"] = own["layer_norm_eps"]
    return own
