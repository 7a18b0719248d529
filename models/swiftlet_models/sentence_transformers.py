"""Reads the description of a sentence-transformers directory: pooling, normalisation, length, prompts and activation.

`modules.json` lists the modules of an embedding model. Supported are a Transformer, then Pooling, then any number of
Dense (only the last may have an activation), then optionally Normalize. A Normalize before them does not matter if they
have no bias and no activation, and another one is last. Supported are also a Transformer and SpladePooling, and a
Transformer with Dense (ColBERT). The Transformer is a checkpoint of transformers, which `convert.py` reads. A
CrossEncoder is a checkpoint whose configuration names the activation of its only output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import vector_forms
from swiftlet_models.artifact import Dense, Embedding, Pooling, PoolingOption, Problem
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.checkpoint_tokenizer import read_limits
from swiftlet_models.tensors import Weights, is_finite

MODULES: Final = "modules.json"
ROUTER: Final = "router_config.json"
SETTINGS: Final = "config_sentence_transformers.json"
LENGTHS: Final = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)  # the first that exists holds the token limit

_IN_TRAINING: Final = "Dropout"  # a module that does nothing afterwards
_TRAIN: Final = "Train the model with that"
_CLASSIFIER: Final = ("Transformer", "LogitScore")  # the modules of a CrossEncoder

# Settings beside the modules that are read, or do not matter for the vectors.
_KNOWN: Final = frozenset(
    {
        "__version__",
        "activation_fn",
        "default_prompt_name",
        "do_lower_case",
        "max_seq_length",
        "modality_config",
        "model_type",
        "module_output_name",
        "prompts",
        "similarity_fn_name",
        "transformer_task",
        "unpad_inputs",
    }
)
_INSTEAD: Final[Mapping[str, str]] = {
    "truncate_dim": "A request names the length of its vectors in dimensions",
    "processing_kwargs": "The number of tokens is max_seq_length",
}
_POOLINGS: Final[Mapping[str, Pooling]] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_ROOT_MEAN: Final = "mean_sqrt_len_tokens"  # the mean, longer by the root of the number of tokens
_FLAGS: Final = {  # settings of older versions, one for each pooling
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": _ROOT_MEAN,
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: Final[Mapping[object, Dense]] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.linear.Identity": "identity",
}
_ACTIVATION_NAMES: Final = ", ".join(str(name).rpartition(".")[2] for name in _ACTIVATIONS)
# The functions of `/classify` for one label: a sigmoid, or none.
_PROBLEMS: Final[Mapping[object, Problem]] = {
    None: "single_label",
    "torch.nn.modules.activation.Sigmoid": "single_label",
    "torch.nn.modules.linear.Identity": "regression",
}


@dataclass(frozen=True)
class SentenceEncoder:
    """A checkpoint whose tokens become one vector."""

    checkpoint: Path  # a directory of transformers
    embedding: Embedding
    max_tokens: int | None = None  # the token limit of a text; None: the network's
    dense: Weights = field(default_factory=dict)  # the parameters of the head
    query_weights: NDArray[np.float32] | None = None  # of the tokens of a query, if they need no network


def is_encoder(directory: Path) -> bool:
    """Returns whether a directory holds a model of sentence-transformers that makes vectors, of any kind."""
    if not (directory / MODULES).is_file():
        return vector_forms.is_stanford(directory)
    return any(kind not in _CLASSIFIER for kind, _ in read_modules(directory))


def named_pooling(embedding: Embedding) -> PoolingOption:
    """Returns the pooling that makes a checkpoint of transformers this embedding model."""
    return "splade" if embedding.by_vocabulary else embedding.pooling


def read_encoder(directory: Path, pooling: PoolingOption | None = None) -> SentenceEncoder:
    """Reads an embedding model. `pooling` is for a directory that does not name one, a checkpoint of transformers.

    Raises:
        ConversionError: a module or setting is not supported, or the pooling is missing or given twice.
    """
    if not is_encoder(directory):
        if pooling is None:
            raise ConversionError(f"the directory has no {MODULES}; choose a pooling with --pooling.")
        limit = read_limits(directory).max_tokens
        if pooling == "splade":
            return SentenceEncoder(directory, vector_forms.SPLADE, limit)
        return _with_heads(SentenceEncoder(directory, Embedding(pooling), limit))
    if pooling is not None:
        raise ConversionError(f"{MODULES} sets the pooling, so --pooling is not allowed.")
    if vector_forms.is_stanford(directory):
        return _stanford(directory)
    modules = read_modules(directory)
    query_weights = default_route = None
    if modules[0][0] == "Router" and len(modules) == 1:
        query_weights, default_route, modules = _routes(modules[0][1])
    kinds = [kind for kind, _ in modules]
    if kinds in (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"]):
        prompts, default = read_prompts(directory)
        sparse, checkpoint = vector_forms.read_splade(modules[1][1]), modules[0][1]
        _check_settings(directory, checkpoint)
        if query_weights is not None:
            sparse, prompts = replace(sparse, static_query=True), {"query": "", "document": "", **prompts}
            if default_route == "query":  # of texts whose kind a request does not name
                if default not in (None, "query"):
                    raise ConversionError(
                        f"{ROUTER}: texts are queries by default, and {SETTINGS} has another default prompt, which is "
                        "not supported. Remove default_prompt_name."
                    )
                default = "query"
        embedding = replace(vector_forms.SPLADE, sparse=sparse, prompts=prompts, default_prompt=default)
        return SentenceEncoder(checkpoint, embedding, _max_tokens(checkpoint), query_weights=query_weights)
    if kinds[:2] == ["Transformer", "Dense"] and {*kinds[1:]} == {"Dense"}:
        return _late_interaction(directory, [path for _, path in modules])
    is_unit = kinds[2:3] == ["Normalize"]
    if is_inner := "Normalize" in kinds[:-1] and kinds[-1] == "Normalize":
        modules = [module for module in modules[:-1] if module[0] != "Normalize"] + modules[-1:]
        kinds = [kind for kind, _ in modules]
    dense = [path for kind, path in modules if kind == "Dense"]
    allowed = ["Transformer", "Pooling", *["Dense"] * len(dense), *(["Normalize"] if "Normalize" in kinds else [])]
    for kind in kinds:
        if kind not in allowed:
            raise ConversionError(
                f"{MODULES}: the module {kind} is not supported, only Transformer, Pooling, SpladePooling, Dense and "
                f"Normalize are. {_TRAIN}."
            )
    if kinds != allowed:
        raise ConversionError(
            f"{MODULES}: the modules {', '.join(kinds)} are not supported in this order. "
            f"{_TRAIN}: {', '.join(allowed)}."
        )
    checkpoint = modules[0][1]
    _check_settings(directory, checkpoint)
    prompts, default = read_prompts(directory)
    activation, parameters = _dense(dense) if dense else (None, {})
    if is_inner and dense and (activation != "identity" or np.any(parameters["head.output.bias"])):
        raise ConversionError(
            f"{MODULES}: a Normalize before a Dense module is supported only if that has no bias and no activation. "
            f"{_TRAIN}: {', '.join(allowed)}."
        )
    embedding = Embedding(
        pooling=_pooling(modules[1][1], has_prompts=any(prompts.values()), is_unit=is_unit),
        normalize="Normalize" in kinds,
        dense=activation,
        prompts=prompts,
        default_prompt=default,
    )
    return _with_heads(SentenceEncoder(checkpoint, embedding, _max_tokens(checkpoint), parameters))


def _routes(directory: Path) -> tuple[NDArray[np.float32], str | None, list[tuple[str, Path]]]:
    """Reads a Router: the weights of a query's tokens (V,), the default route, and the modules of documents.

    Raises:
        ConversionError: the queries have other modules than SparseStaticEmbedding, or the routes other names.
    """
    config = read_object(directory / ROUTER)
    types, structure = config.get("types"), config.get("structure")
    if not isinstance(types, dict) or not isinstance(structure, dict):
        raise ConversionError(f"{ROUTER} does not list modules.")
    routes: dict[object, list[tuple[str, Path]]] = {}
    for route, names in structure.items():
        for name in names if isinstance(names, list) else [None]:
            if not isinstance(name, str) or name != Path(name).name or not isinstance(types.get(name), str):
                raise ConversionError(f"{ROUTER} does not list modules with a type and a path.")
            routes.setdefault(route, []).append((types[name].rpartition(".")[2], directory / name))
    queries = routes.pop("query", [])
    if [kind for kind, _ in queries] != ["SparseStaticEmbedding"] or [*routes] != ["document"]:
        raise ConversionError(
            f"{ROUTER}: only a Router with SparseStaticEmbedding for queries, and modules for documents, is supported."
        )
    settings = config.get("parameters") or {}
    default = settings.get("default_route") if isinstance(settings, dict) else False
    if default not in (None, "query", "document") or settings.get("route_mappings"):
        raise ConversionError(f"{ROUTER}: only query and document are supported as routes. Remove route_mappings.")
    with open_tensors(queries[0][1]) as tensors:
        weights = tensors.get("weight")
        if weights is None or len(weights.shape) != 1 or weights.dtype.kind != "f" or not is_finite(weights):
            raise ConversionError("the module SparseStaticEmbedding has no weights of tokens.")
        return np.asarray(weights, np.float32), default, routes["document"]


def _with_heads(encoder: SentenceEncoder) -> SentenceEncoder:
    """Returns a model with the matrices for other forms than a vector that lie beside its checkpoint."""
    sparse, several, weights = vector_forms.read_m3_heads(encoder.checkpoint)
    embedding = replace(encoder.embedding, sparse=sparse, multi_vector=several)
    if weights and embedding.pooling != "cls":
        raise ConversionError(f"beside {' or '.join(vector_forms.HEADS)}, only the pooling cls is supported.")
    return replace(encoder, embedding=embedding, dense={**encoder.dense, **weights})


def _late_interaction(directory: Path, paths: Sequence[Path]) -> SentenceEncoder:
    """Reads a ColBERT of PyLate."""
    checkpoint, *dense = paths
    activation, parameters = _dense(dense, of_tokens=True)
    if activation != "identity":
        raise ConversionError("the Dense module of a ColBERT has an activation, which is not supported.")
    weights = {name.replace("output", "vectors"): weight for name, weight in parameters.items()}
    width = len(weights["head.vectors.weight"])
    embedding = vector_forms.late_interaction(checkpoint, _optional(directory / SETTINGS), width)
    return SentenceEncoder(checkpoint, embedding, read_limits(checkpoint).max_tokens, weights)


def _stanford(directory: Path) -> SentenceEncoder:
    with open_tensors(directory) as tensors:
        weight = tensors.get("linear.weight")
        if weight is None or len(weight.shape) != 2:
            raise ConversionError("the ColBERT has no matrix linear.weight.")
        width = weight.shape[0]
    embedding = vector_forms.read_stanford(directory, width)
    bias = {"head.vectors.bias": np.zeros(width, np.float32)}
    return SentenceEncoder(directory, embedding, read_limits(directory).max_tokens, bias)


def _check_settings(directory: Path, checkpoint: Path) -> None:
    """Raises ConversionError if a setting beside the modules may change the vectors, and is not read."""
    for file in (directory / SETTINGS, *(checkpoint / name for name in LENGTHS)):
        for key, value in _optional(file).items():
            if key not in _KNOWN and value not in (None, {}, []):
                instead = f" {_INSTEAD[key]}." if key in _INSTEAD else ""
                raise ConversionError(f"{file.name}: the setting {key!r:.60} is not supported; remove it.{instead}")


def cross_encoder_problem(directory: Path) -> Problem:
    """Returns the kind of classification that gives a CrossEncoder's scores: its activation decides, not its labels.

    Raises:
        ConversionError: the activation is not supported.
    """
    config = read_object(directory / "config.json")
    nested = config.get("sentence_transformers")
    named: object = None
    for settings in (_optional(directory / SETTINGS), nested if isinstance(nested, dict) else {}):
        named = named or settings.get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    if not isinstance(named, str | None) or named not in _PROBLEMS:
        raise ConversionError(
            "the activation of the cross-encoder is not supported, only Sigmoid and Identity are. For logits, which "
            "rank as a growing function of them does, set it to torch.nn.modules.linear.Identity."
        )
    return _PROBLEMS[named]


def read_modules(directory: Path) -> list[tuple[str, Path]]:
    """Returns the kind and the directory of each module that computes something."""
    modules = read_object(directory / MODULES, list)
    directories = []
    for module in modules:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str) or path not in (".", Path(path).name):
            raise ConversionError(f"{MODULES} does not list modules with a type and a path.")
        directories.append((kind.rpartition(".")[2], directory / path))
    return [module for module in directories if module[0] != _IN_TRAINING]


def _module_config(directory: Path) -> dict[str, Any]:
    file = directory / "config.json"
    if not file.exists():
        step = "Copy the directory of the model with its folders, or download it once more"
        raise ConversionError(f"{MODULES} names {directory.name}, but {directory.name}/{file.name} is missing. {step}.")
    settings: dict[str, Any] = read_object(file)
    return settings


def _pooling(directory: Path, *, has_prompts: bool, is_unit: bool) -> Pooling:
    """Reads the pooling of a model, whose vectors have length 1 next if `is_unit`."""
    config = _module_config(directory)
    modes: object = config.get("pooling_mode", [mode for flag, mode in _FLAGS.items() if config.get(flag)])
    names = [modes] if isinstance(modes, str) else modes
    if names == [_ROOT_MEAN] and is_unit:
        names = ["mean"]
    if not isinstance(names, list) or len(names) != 1 or names[0] not in [*_POOLINGS]:
        named = " with ".join(map(str, names)) if isinstance(names, list) else str(names)
        raise ConversionError(
            f"the pooling {named or 'none'} is not supported, only one of {', '.join(_POOLINGS)} is, or {_ROOT_MEAN} "
            f"with a module Normalize next. {_TRAIN}."
        )
    if has_prompts and not config.get("include_prompt", True):
        raise ConversionError("the pooling leaves out the tokens of the prompt, which is not supported.")
    return _POOLINGS[names[0]]


def _dense(directories: Sequence[Path], *, of_tokens: bool = False) -> tuple[Dense, Weights]:
    """Reads Dense modules as one. Maps without an activation between them are one map, which is computed in fp64."""
    *first, (activation, weight, bias) = (_one_dense(path, of_tokens=of_tokens) for path in directories)
    for earlier, inner, inner_bias in reversed(first):
        if earlier != "identity":
            raise ConversionError("a Dense module with an activation is followed by another, which is not supported.")
        if inner.shape[0] != weight.shape[1]:
            raise ConversionError("the Dense modules do not fit together.")
        wide = weight.astype(np.float64)
        weight, bias = wide @ inner, wide @ inner_bias + bias
    return activation, {
        "head.output.weight": weight.astype(np.float32, copy=False),
        "head.output.bias": bias.astype(np.float32, copy=False),
    }


def _one_dense(
    directory: Path, *, of_tokens: bool
) -> tuple[Dense, NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    config = _module_config(directory)
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ConversionError(
            f"the activation of the Dense module is not supported, only {_ACTIVATION_NAMES} are. {_TRAIN}."
        )
    plain = all(config.get(f"module_{side}_name") in (None, "sentence_embedding") for side in ("input", "output"))
    if config.get("use_residual") or not (plain or of_tokens):  # PyLate's class reads tokens, whatever it says
        raise ConversionError("the Dense module has a residual or reads other features, which is not supported.")
    with open_tensors(directory) as tensors:
        weight = tensors.get("linear.weight")
        if weight is None or len(weight.shape) != 2:
            raise ConversionError("the Dense module has no matrix linear.weight.")
        bias = tensors.get("linear.bias", np.zeros(len(weight), np.float32))
        if bias.shape != weight.shape[:1]:
            raise ConversionError("the bias linear.bias of the Dense module has another size than its matrix.")
        return _ACTIVATIONS[activation], np.asarray(weight), np.asarray(bias)


def read_prompts(directory: Path) -> tuple[dict[str, str], str | None]:
    settings = _optional(directory / SETTINGS)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ConversionError(f"{SETTINGS}: prompts has an invalid value.")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ConversionError(f"{SETTINGS}: default_prompt_name is not the name of a prompt.")
    return prompts, default


def _max_tokens(checkpoint: Path) -> int | None:
    settings = next((_optional(checkpoint / name) for name in LENGTHS if (checkpoint / name).is_file()), {})
    tokenizer = _optional(checkpoint / "tokenizer_config.json")
    if settings.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        raise ConversionError("do_lower_case is not supported, because the tokenizer keeps capital letters.")
    limit = settings.get("max_seq_length")
    if limit is None:
        return read_limits(checkpoint).max_tokens
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 1:
        raise ConversionError("max_seq_length has an invalid value.")
    return int(min(limit, 1 << 31))


def _optional(file: Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}
