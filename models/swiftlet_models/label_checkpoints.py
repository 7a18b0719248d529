"""Reads checkpoints of GLiNER and GLiClass: an encoder of transformers, and a head that scores labels.

They are written by `save_pretrained` of gliner 0.2.29 and gliclass 0.1.21, or earlier versions. A setting that changes
the network and is not read is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import sources
from swiftlet_models.artifact import Embedding, Labelling
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.checkpoint_tokenizer import read_limits
from swiftlet_models.tensors import Floats, Weights, is_finite

GLINER: Final = sources.GLINER

_TOKENS_PER_WORD: Final = 4  # of a window: words of few languages have more
_PIPELINE: Final = 1024  # the most tokens that the pipeline of gliclass reads by default
_SAVE: Final = "load it with gliner and save it again: GLiNER.from_pretrained(DIR).save_pretrained(NEW)"

# Settings with the only values that are read. None stands for a setting that is not there.
_GLINER: Final[Mapping[str, tuple[object, ...]]] = {
    "words_splitter_type": (None, "whitespace"),
    "fuse_layers": (None, False),
    "post_fusion_schema": (None, ""),
    "span_encoder_config": (None,),
    "represent_spans": (None, False),
    "precomputed_prompts_mode": (None, False),
    "labels_encoder": (None,),
    "labels_decoder": (None,),
    "relations_layer": (None,),
    "span_mode": (None, "markerV0", "token_level"),
    "subtoken_pooling": (None, "first", "last", "mean", "max"),
}
_GLICLASS: Final[Mapping[str, tuple[object, ...]]] = {
    "architecture_type": (None, "uni-encoder"),
    "projector_hidden_act": (None, "gelu"),
    "use_lstm": (None, False),
    "scorer_type": (None, "simple", "weighted-dot", "mlp"),
    "pooling_strategy": (None, "first", "last", "avg", "max"),
    "class_token_pooling": (None, "first", "average"),
    "squeeze_layers": (None, False),
    "encoder_layer_id": (None, -1),
    "use_segment_embeddings": (None, False),
    "use_calibrator": (None, False),
}
_POOLINGS: Final = {"avg": "mean"}
STREAMING: Final = "gliner_streaming_span"


@dataclass(frozen=True)
class LabelCheckpoint:
    """A checkpoint of GLiNER or GLiClass."""

    directory: Path
    settings: Mapping[str, Any]  # of the encoder, as its `config.json` has them
    labelling: Labelling
    token: int  # the id of the marker
    prefix: str  # of the names of the encoder's tensors
    max_tokens: int  # special tokens included
    origin: None = None  # there is no base, as an adapter has

    @property
    def tokenizer(self) -> Path:
        return self.directory

    @contextmanager
    def open(self) -> Iterator[Weights]:
        """Opens the tensors of the encoder for the duration of a block, as `open_tensors` does."""
        with open_tensors(self.directory) as tensors:
            yield {
                name.removeprefix(self.prefix): tensor
                for name, tensor in tensors.items()
                if name.startswith(self.prefix)
            }

    def read_head(self) -> tuple[Embedding, dict[str, Floats], dict[str, Floats]]:
        """Returns how the encoder ends, the parameters of that, and those of the head.

        Raises:
            ConversionError: a tensor holds no floating-point numbers, or not only finite ones.
        """
        with open_tensors(self.directory) as tensors:
            kept = {
                name.removeprefix("model."): tensor
                for name, tensor in tensors.items()
                if not name.startswith(self.prefix) and name != "model.logit_scale"
            }
            for name, tensor in kept.items():
                if tensor.dtype.kind != "f":
                    raise ConversionError(f"the tensor {name} holds no floating-point numbers.")
                if not is_finite(tensor):
                    raise ConversionError(f"the tensor {name} holds values that are not finite.")
            head = {name: np.asarray(tensor, np.float32) for name, tensor in kept.items()}
        projection = {
            f"head.output.{part}": head.pop(name)
            for part in ("weight", "bias")
            if (name := f"token_rep_layer.projection.{part}") in head
        }
        return Embedding("cls", dense="identity" if projection else None), projection, head


def find_label_checkpoint(directory: Path) -> LabelCheckpoint | None:
    """Returns the checkpoint of GLiNER or GLiClass in a directory; None if it holds another one.

    Raises:
        ConversionError: a setting is not supported or has an invalid value.
    """
    match sources.labelling_of(directory):
        case sources.GLINER:
            return _read_gliner(directory)
        case sources.GLICLASS:
            return _read_gliclass(directory)
    return None


def _read_gliner(directory: Path) -> LabelCheckpoint:
    config = read_object(directory / GLINER)
    if config.get("model_type") == STREAMING:  # it writes no other type, and tells the form by other settings
        raise ConversionError(f"{GLINER}: model_type {STREAMING!r} is not supported, only GLiNER with one encoder.")
    _check(GLINER, config, _GLINER)
    encoder = _encoder(GLINER, config, _SAVE)
    max_words, max_width = _count(GLINER, config, "max_len", 384), _count(GLINER, config, "max_width", 12)
    labelling = Labelling(
        scores="words" if config.get("span_mode") == "token_level" else "spans",
        marker=_text(GLINER, config, "ent_token", "<<ENT>>"),
        separator=_text(GLINER, config, "sep_token", "<<SEP>>"),
        label_rows="marker" if config.get("embed_ent_token", True) else "next",
        word_rows=config.get("subtoken_pooling") or "first",
        max_words=max_words,
        max_width=max_width,
    )
    token = _count(GLINER, config, "class_token_index", 0)
    prefix = "token_rep_layer.bert_layer.model."
    encoder, positions = _with_positions(encoder, _TOKENS_PER_WORD * max_words)
    limit = min(read_limits(directory).max_tokens or positions, positions)
    return LabelCheckpoint(directory, encoder, labelling, token, prefix, limit)


def _read_gliclass(directory: Path) -> LabelCheckpoint:
    name = "config.json"
    config = read_object(directory / name)
    _check(name, config, _GLICLASS)
    encoder = _encoder(name, config, "load it with gliclass and save it again with save_pretrained")
    averages = config.get("class_token_pooling") == "average"
    embeds, extracts = config.get("embed_class_token", True), bool(config.get("extract_text_features"))
    pooling = config.get("pooling_strategy") or "first"
    if averages and not embeds:
        raise ConversionError(f"{name}: class_token_pooling 'average' is not supported without embed_class_token.")
    if extracts and pooling != "first":
        raise ConversionError(f"{name}: extract_text_features is not supported with pooling_strategy {pooling!r}.")
    scale = None
    if config.get("normalize_features"):
        with open_tensors(directory) as tensors:
            if "model.logit_scale" not in tensors:
                raise ConversionError("the tensor model.logit_scale is not in the checkpoint.")
            scale = float(np.asarray(tensors["model.logit_scale"]))
    labelling = Labelling(
        scores="text",
        marker="<<LABEL>>",
        separator="<<SEP>>",
        label_rows="mean" if averages else "marker" if embeds else "next",
        word_rows=_POOLINGS.get(pooling, pooling),  # type: ignore[arg-type]  # _check has seen it
        labels_first=bool(config.get("prompt_first")),
        reads_from_separator=extracts,
        scorer={"simple": "dot"}.get(scorer := config.get("scorer_type") or "simple", scorer),  # type: ignore[arg-type]
        scale=scale,
    )
    encoder, positions = _with_positions(encoder, _PIPELINE)
    limit = min(read_limits(directory).max_tokens or positions, positions)
    token = _count(name, config, "class_token_index", 0)
    return LabelCheckpoint(directory, encoder, labelling, token, "model.encoder_model.", limit)


def _check(file: str, config: Mapping[str, Any], known: Mapping[str, tuple[object, ...]]) -> None:
    for key, values in known.items():
        if config.get(key) not in values:
            named = " or ".join(repr(value) for value in values if value is not None) or "its absence"
            raise ConversionError(f"{file}: {key} {config[key]!r} is not supported, only {named}.")


def _encoder(file: str, config: Mapping[str, Any], step: str) -> dict[str, Any]:
    encoder = config.get("encoder_config")
    if not isinstance(encoder, dict):
        raise ConversionError(f"{file} does not describe the encoder (encoder_config); {step}.")
    return {"model_type": "deberta-v2"} | encoder


def _with_positions(encoder: dict[str, Any], tokens: int) -> tuple[dict[str, Any], int]:
    """Returns an encoder for sequences of as many tokens, if it has no table of positions, and its limit.

    A DeBERTa without such a table reads texts of any length, and the distances that its buckets tell apart stay.
    """
    stated = encoder.get("max_position_embeddings", 512)
    if encoder["model_type"] != "deberta-v2" or encoder.get("position_biased_input", True) or type(stated) is not int:
        return encoder, stated if type(stated) is int else tokens
    longest = encoder.get("max_relative_positions", -1)
    longest = stated if type(longest) is not int or longest < 1 else longest
    most = max(stated, tokens)
    return encoder | {"max_relative_positions": longest, "max_position_embeddings": most}, most


def _count(file: str, config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key, default)
    if type(value) is not int or value < 1:
        step = f"; {_SAVE}" if key == "class_token_index" else ""
        raise ConversionError(f"{file}: {key} is not a number from 1{step}.")
    return value


def _text(file: str, config: Mapping[str, Any], key: str, default: str) -> str:
    value = config.get(key, default)
    if not isinstance(value, str) or not value:
        raise ConversionError(f"{file}: {key} has an invalid value.")
    return value
