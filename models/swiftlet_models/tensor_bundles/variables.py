"""The variables of Google's BERT, ALBERT, MobileBERT and ELECTRA, under the names that transformers gives them.

Follows `load_tf_weights_in_bert` and its relatives in transformers 4.57.1. Matrices of dense layers are stored
transposed. What only a training reads is left out: the variables of the optimizer, and the half of an ELECTRA that is
not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal

from swiftlet_models.tensor_bundles.bundle import Bundle, BundleError
from swiftlet_models.tensors import Matrix, Tensor, Weights, strided

Network = Literal["albert", "bert", "electra", "mobilebert"]
Names = tuple[tuple[str, str], ...]

_OBJECTS: Final = "_CHECKPOINTABLE_OBJECT_GRAPH"  # of TensorFlow 2, which names variables by the code around them
_TRAINING: Final = re.compile(r"(^|/)(adam_[mv]|AdamWeightDecayOptimizer(_1)?|global_step|temperature)(/|$)")
_MARKS: Final[tuple[tuple[str, Network], ...]] = (  # parts of names that only one network has
    (r"^(module/)?(electra|generator)/", "electra"),
    (r"/inner_group_\d+/", "albert"),
    (r"/embedding_transformation/|/FakeLayerNorm/|/ffn_layer_\d+/", "mobilebert"),
    (r"^(module/)?bert/", "bert"),
)
_MATRIX: Final = re.compile(r"/(kernel|extra_output_weights)$")  # stored transposed

# Patterns and replacements, applied in order.
_FIRST: Final[Names] = (
    (r"^module/", ""),  # of TensorFlow Hub
    (r"^cls/squad/", "qa_outputs/"),
    (r"^output_", "classifier/output_"),
)
_GROUP: Final = r"(/albert_layers/\d+)"
_OWN: Final[Mapping[Network, Names]] = {
    "albert": (
        (r"^bert/", "albert/"),
        (r"/transformer/group_(\d+)/inner_group_(\d+)/", r"/albert_layer_groups/\1/albert_layers/\2/"),
        (rf"{_GROUP}/LayerNorm/", r"\1/attention/LayerNorm/"),
        (rf"{_GROUP}/LayerNorm_1/", r"\1/full_layer_layer_norm/"),
        (rf"{_GROUP}/attention_1/(self|output)/", r"\1/attention/"),
        (rf"{_GROUP}/ffn_1/intermediate/output/dense/", r"\1/ffn_output/"),
        (rf"{_GROUP}/ffn_1/intermediate/dense/", r"\1/ffn/"),
        (r"/pooler/dense/", "/pooler/"),
        (r"^cls/predictions/(transform/)?", "predictions/"),
        (r"^cls/seq_relationship/", "sop_classifier/classifier/"),
    ),
    "bert": (),
    "electra": (
        (r"^discriminator_predictions/dense_1/", "discriminator_predictions/dense_prediction/"),
        (r"^generator_predictions/output_bias$", "generator_lm_head/output_bias"),
    ),
    "mobilebert": (
        (r"^bert/", "mobilebert/"),
        (r"/ffn_layer_(\d+)/", r"/ffn/\1/"),
        (r"/FakeLayerNorm/", "/LayerNorm/"),
        (r"^cls/predictions/extra_output_weights$", "cls/predictions/dense/kernel"),
    ),
}
_LAST: Final[Names] = (
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/(kernel|gamma|output_weights)$", "/weight"),
    (r"/(beta|output_bias)$", "/bias"),
    (r"/", "."),
)


def network_of(names: Iterable[str]) -> Network:
    """Returns the network that has variables of these names. Raises BundleError if there is none."""
    names = list(names)
    for pattern, network in _MARKS:
        if any(re.search(pattern, name) for name in names):
            return network
    if _OBJECTS in names:
        raise BundleError("its variables have the names of objects, as TensorFlow 2 saves them")
    raise BundleError("its variables are not those of Google's BERT, ALBERT, MobileBERT or ELECTRA")


def read_variables(bundle: Bundle, *, generator: bool) -> Weights:
    """Returns the parameters in a bundle, which are read when they are used. `generator` is the one of an ELECTRA.

    Raises:
        BundleError: the bundle is damaged, or holds another network.
        OSError: a file cannot be read.
    """
    network = network_of(bundle.entries)
    trained = [name for name in bundle.entries if not _TRAINING.search(name) and name != _OBJECTS]
    parts = _half(trained, generator=generator) if network == "electra" else {name: name for name in trained}
    tensors = bundle.tensors(parts.values())
    weights: dict[str, Matrix] = {}
    for name, stored in parts.items():
        own = name
        for pattern, replacement in (*_FIRST, *_OWN[network], *_LAST):
            own = re.sub(pattern, replacement, own)
        if own in weights:
            raise BundleError(f"two variables name the parameter {own}")
        weights[own] = _transposed(tensors[stored]) if _MATRIX.search(stored) else tensors[stored]
    return weights


def _half(names: list[str], *, generator: bool) -> dict[str, str]:
    """Returns the names of an ELECTRA's discriminator, or those that its generator would have, with the stored ones.

    The generator has the embeddings of the discriminator, unless it has its own.
    """
    if not generator:
        return {name: name for name in names if not name.startswith("generator")}
    shared = {name: name for name in names if name.startswith("electra/embeddings/")}
    own = {re.sub(r"^generator/", "electra/", name): name for name in names if name.startswith("generator")}
    return shared | own


def _transposed(tensor: Tensor) -> Matrix:
    shape = tensor.shape[::-1]
    return strided(replace(tensor, shape=shape), (1, shape[0])) if len(shape) == 2 else tensor
