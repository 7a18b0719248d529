"""Reads the descriptions of embedding models whose texts have other forms than one dense vector.

- SPLADE (Formal et al. 2021, arXiv:2109.10086), as sentence-transformers writes its `SparseEncoder`.
- bge-m3 (Chen et al. 2024, arXiv:2402.03216): two matrices beside a checkpoint of XLM-RoBERTa.
- ColBERT (Khattab and Zaharia 2020, arXiv:2004.12832), as PyLate or Stanford's package writes it.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import sources
from swiftlet_models.artifact import Embedding, MultiVector, Sparse
from swiftlet_models.checkpoint_tensors import ConversionError, read_object
from swiftlet_models.pickles import PickleError
from swiftlet_models.tensors import Weights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.torch_pickle import File, open_torch

SPARSE_HEAD: Final = "sparse_linear.pt"
SEVERAL_HEAD: Final = "colbert_linear.pt"
HEADS: Final = (SPARSE_HEAD, SEVERAL_HEAD)
METADATA: Final = "artifact.metadata"  # of Stanford's package
SPLADE: Final = Embedding("max", vector=False, sparse=Sparse("vocabulary"))

_STANFORD: Final = "HF_ColBERT"
_LOGARITHMS: Final = {"relu": 1, "log1p_relu": 2}
_PROMPTS: Final = {"query": "", "document": ""}


def read_splade(directory: Path) -> Sparse:
    """Reads the module SpladePooling.

    Raises:
        ConversionError: it pools in another way.
    """
    config = read_object(directory / "config.json")
    if config.get("pooling_strategy", "max") != "max":
        raise ConversionError("the module SpladePooling does not take the maximum, and nothing else is supported.")
    function = config.get("activation_function", "relu")
    if not isinstance(function, str) or function not in _LOGARITHMS:
        raise ConversionError(f"the activation of SpladePooling is not supported, only {', '.join(_LOGARITHMS)} are.")
    return Sparse("vocabulary", _LOGARITHMS[function])


def read_m3_heads(directory: Path) -> tuple[Sparse | None, MultiVector | None, Weights]:
    """Reads the matrices that bge-m3 has beside its checkpoint, if they are there, as parameters of the head.

    Raises:
        ConversionError: a file cannot be read, or holds something else.
    """
    sparse, several, weights = None, None, dict[str, Any]()
    if not any((directory / name).is_file() for name in HEADS):
        return sparse, several, weights
    config = sources.read_config(directory / "tokenizer_config.json")
    if (file := directory / SPARSE_HEAD).is_file():
        weights |= _linear(file, "terms")
        tokenizer = Tokenizer.from_directory(directory)
        end = tokenizer.token_to_id(_text(config.get("eos_token") or "</s>"))
        special = {*tokenizer.special_ends[0], end, tokenizer.pad_id, tokenizer.unknown_id}
        sparse = Sparse("tokens", 0, tuple(sorted(token for token in special if token is not None)))
    if (file := directory / SEVERAL_HEAD).is_file():
        weights |= _linear(file, "vectors")
        several = MultiVector(len(weights["head.vectors.weight"]), first=1)
    return sparse, several, weights


def is_stanford(directory: Path) -> bool:
    """Returns whether a directory holds a ColBERT of Stanford's package."""
    names = sources.read_config(directory / "config.json").get("architectures")
    return isinstance(names, list) and _STANFORD in names


def read_stanford(directory: Path, width: int) -> Embedding:
    """Reads a ColBERT of Stanford's package whose vectors have this width.

    Raises:
        ConversionError: a setting is not supported.
    """
    settings = read_object(directory / METADATA) if (directory / METADATA).is_file() else {}
    if settings.get("similarity", "cosine") != "cosine":
        raise ConversionError(f"{METADATA}: similarity is not supported, only cosine is.")
    names = {
        "query_prefix": "query_token_id",
        "document_prefix": "doc_token_id",
        "query_length": "query_maxlen",
        "document_length": "doc_maxlen",
        "attend_to_expansion_tokens": "attend_to_mask_tokens",
    }
    own = {name: settings[theirs] for name, theirs in names.items() if theirs in settings}
    own.setdefault("query_prefix", "[unused0]")
    own.setdefault("document_prefix", "[unused1]")
    own["skiplist_words"] = [*string.punctuation] if settings.get("mask_punctuation", True) else []
    return late_interaction(directory, own, width)


def late_interaction(directory: Path, settings: Mapping[str, Any], width: int) -> Embedding:
    """Returns the description of a ColBERT from the settings of PyLate, whose defaults apply.

    Raises:
        ConversionError: a setting has an invalid value, or the tokenizer lacks a token.
    """
    prefixes = {name: settings.get(f"{name}_prefix", f"[{name[0].upper()}] ") for name in _PROMPTS}
    lengths = {name: settings.get(f"{name}_length", most) for name, most in (("query", 32), ("document", 180))}
    words = settings.get("skiplist_words")
    words = [*string.punctuation] if words is None else words
    expands, attends = settings.get("do_query_expansion", True), settings.get("attend_to_expansion_tokens", False)
    valid = {
        "prefix": all(isinstance(prefix, str) for prefix in prefixes.values()),
        "length": all(type(length) is int and length > 0 for length in lengths.values()),
        "skiplist_words": isinstance(words, list) and all(isinstance(word, str) for word in words),
        "do_query_expansion": isinstance(expands, bool),
        "attend_to_expansion_tokens": isinstance(attends, bool),
    }
    for key, good in valid.items():
        if not good:
            raise ConversionError(f"the settings of ColBERT: {key} has an invalid value.")
    tokenizer = Tokenizer.from_directory(directory)
    config = sources.read_config(directory / "tokenizer_config.json")
    unknown = tokenizer.token_to_id(_text(config.get("unk_token", "[UNK]")))
    skipped = {tokenizer.token_to_id(word) for word in words}
    # PyLate reads a word that is no token as the unknown token.
    ignored = {unknown if token is None else token for token in skipped} - {None}
    mask = _id(tokenizer, _text(config.get("mask_token") or config.get("eos_token") or "[MASK]")) if expands else None
    ids = {name: _id(tokenizer, prefix) for name, prefix in prefixes.items() if prefix}
    several = MultiVector(
        width,
        prefixes=ids,
        query_tokens=lengths["query"],
        document_tokens=lengths["document"],
        mask=mask,
        reads_masks=attends,
        ignored=tuple(sorted(token for token in ignored if token is not None)),
    )
    return Embedding("cls", normalize=True, prompts=_PROMPTS, vector=False, multi_vector=several)


def _id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ConversionError(f"the tokenizer lacks the token {token!r}, which the settings of ColBERT need.")
    return number


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _linear(file: Path, name: str) -> dict[str, Any]:
    """Returns the parameters of a linear layer that torch saved."""
    try:
        with File(file) as opened:
            tensors = {key: np.asarray(tensor, np.float32) for key, tensor in open_torch(opened).items()}
    except (OSError, PickleError) as error:
        raise ConversionError(f"{file.name}: {error}.") from None
    if set(tensors) != {"weight", "bias"} or tensors["weight"].ndim != 2:
        raise ConversionError(f"{file.name} does not hold the weight and the bias of a linear layer.")
    return {f"head.{name}.{part}": tensor for part, tensor in tensors.items()}
