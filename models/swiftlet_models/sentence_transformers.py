"""Reads the description of a sentence-transformers directory: pooling, normalisation, length, prompts and activation.

`modules.json` lists the modules of an embedding model. Supported are a Transformer, then Pooling, then optionally
Dense, then optionally Normalize. The Transformer is a checkpoint of transformers, which `convert.py` reads. A
CrossEncoder is a checkpoint whose configuration names the activation of its only output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models.artifact import Dense, Embedding, Pooling, Problem
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.checkpoint_tokenizer import read_limits
from swiftlet_models.tensors import Weights

MODULES: Final = "modules.json"
SETTINGS: Final = "config_sentence_transformers.json"
LENGTHS: Final = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)  # the first that exists holds the token limit

_CLASSIFIER: Final = ("Transformer", "LogitScore")  # the modules of a CrossEncoder

_POOLINGS: Final[Mapping[str, Pooling]] = {"cls": "cls", "mean": "mean", "max": "max"}
_FLAGS: Final = {  # settings of older versions, one for each pooling
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: Final[Mapping[object, Dense]] = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
}
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


def is_encoder(directory: Path) -> bool:
    """Returns whether a directory holds a model of sentence-transformers that makes vectors, of any kind."""
    return (directory / MODULES).is_file() and any(kind not in _CLASSIFIER for kind, _ in read_modules(directory))


def read_encoder(directory: Path, pooling: Pooling | None = None) -> SentenceEncoder:
    """Reads an embedding model. `pooling` is for a directory that does not name one, a checkpoint of transformers.

    Raises:
        ConversionError: a module or setting is not supported, or the pooling is missing or given twice.
    """
    if not is_encoder(directory):
        if pooling is None:
            raise ConversionError(f"the directory has no {MODULES}; choose a pooling with --pooling.")
        return SentenceEncoder(directory, Embedding(pooling), read_limits(directory).max_tokens)
    if pooling is not None:
        raise ConversionError(f"{MODULES} sets the pooling, so --pooling is not allowed.")
    modules = read_modules(directory)
    kinds = [kind for kind, _ in modules]
    allowed = ["Transformer", "Pooling", *(kind for kind in ("Dense", "Normalize") if kind in kinds)]
    for kind in kinds:
        if kind not in allowed:
            raise ConversionError(
                f"{MODULES}: the module {kind} is not supported, only Transformer, Pooling, Dense and Normalize are."
            )
    if kinds != allowed:
        raise ConversionError(f"{MODULES}: the modules {', '.join(kinds)} are not supported in this order.")
    checkpoint = modules[0][1]
    prompts, default = read_prompts(directory)
    dense, parameters = _dense(modules[2][1]) if "Dense" in kinds else (None, {})
    embedding = Embedding(
        pooling=_pooling(modules[1][1], has_prompts=any(prompts.values())),
        normalize="Normalize" in kinds,
        dense=dense,
        prompts=prompts,
        default_prompt=default,
    )
    return SentenceEncoder(checkpoint, embedding, _max_tokens(checkpoint), parameters)


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
        raise ConversionError("the activation of the cross-encoder is not supported, only Sigmoid and Identity are.")
    return _PROBLEMS[named]


def read_modules(directory: Path) -> list[tuple[str, Path]]:
    """Returns the kind and the directory of each module."""
    modules = read_object(directory / MODULES, list)
    directories = []
    for module in modules:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str) or path not in (".", Path(path).name):
            raise ConversionError(f"{MODULES} does not list modules with a type and a path.")
        directories.append((kind.rpartition(".")[2], directory / path))
    return directories


def _pooling(directory: Path, *, has_prompts: bool) -> Pooling:
    config = read_object(directory / "config.json")
    modes: object = config.get("pooling_mode", [mode for flag, mode in _FLAGS.items() if config.get(flag)])
    names = [modes] if isinstance(modes, str) else modes
    if not isinstance(names, list) or len(names) != 1 or names[0] not in _POOLINGS:
        raise ConversionError(f"the pooling is not supported, only one of {', '.join(_POOLINGS)} is.")
    if has_prompts and not config.get("include_prompt", True):
        raise ConversionError("the pooling leaves out the tokens of the prompt, which is not supported.")
    return _POOLINGS[names[0]]


def _dense(directory: Path) -> tuple[Dense, Weights]:
    config = read_object(directory / "config.json")
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ConversionError("the activation of the Dense module is not supported, only Tanh and Identity are.")
    plain = config.get("module_input_name", "sentence_embedding") == "sentence_embedding"
    if config.get("use_residual") or not plain or config.get("module_output_name") not in (None, "sentence_embedding"):
        raise ConversionError("the Dense module has a residual or reads other features, which is not supported.")
    with open_tensors(directory) as tensors:
        weight = tensors.get("linear.weight")
        if weight is None or len(weight.shape) != 2:
            raise ConversionError("the Dense module has no matrix linear.weight.")
        bias = tensors.get("linear.bias", np.zeros(len(weight), np.float32))
        return _ACTIVATIONS[activation], {
            "head.output.weight": np.asarray(weight),
            "head.output.bias": np.asarray(bias),
        }


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
