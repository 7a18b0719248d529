"""Reads checkpoints of GLiNER and GLiClass: an encoder of transformers, and a head that scores labels.

GLiNER may have a second encoder, which reads labels.

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
from swiftlet_models.artifact import Embedding, Labelling, Pooling
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.checkpoint_tokenizer import read_limits
from swiftlet_models.tensors import Floats, Matrix, Weights, is_finite

GLINER: Final = sources.GLINER

_TOKENS_PER_WORD: Final = 4  # of a window: words of few languages have more
_LABEL: Final = 512  # tokens of a label, for an encoder without a table of positions
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
LABELS_TOKENIZER: Final = "labels_tokenizer"  # the folder of the tokenizer of a second encoder
_TEXT: Final = "token_rep_layer.projection"
_LABELS: Final = "token_rep_layer.labels_projection"


@dataclass(frozen=True)
class EncoderPart:
    """An encoder in a checkpoint."""

    directory: Path
    settings: Mapping[str, Any]  # as its `config.json` has them
    prefix: str  # of the names of its tensors
    max_tokens: int  # special tokens included
    tokenizer: Path
    pooling: Pooling
    projection: str  # begins the names of the linear layer behind it, if there is one
    origin: None = None  # there is no base, as an adapter has

    @contextmanager
    def open(self) -> Iterator[Weights]:
        """Opens the tensors of the encoder for the duration of a block, as `open_tensors` does."""
        with open_tensors(self.directory) as tensors:
            yield {
                name.removeprefix(self.prefix): tensor
                for name, tensor in tensors.items()
                if name.startswith(self.prefix)
            }

    def read_projection(self) -> tuple[Embedding, dict[str, Floats]]:
        """Returns how the encoder ends, and the parameters of that.

        Raises:
            ConversionError: a tensor holds no floating-point numbers, or not only finite ones.
        """
        with open_tensors(self.directory) as tensors:
            projection = {
                f"head.output.{part}": _floats(name, tensors[name])
                for part in ("weight", "bias")
                if (name := f"{self.projection}.{part}") in tensors
            }
        return Embedding(self.pooling, dense="identity" if projection else None), projection


@dataclass(frozen=True, kw_only=True)
class LabelCheckpoint(EncoderPart):
    """A checkpoint of GLiNER or GLiClass."""

    labelling: Labelling
    token: int | None  # the id of the marker, if there is one
    of_labels: EncoderPart | None = None

    def read_head(self) -> dict[str, Floats]:
        """Returns the parameters of the head.

        Raises:
            ConversionError: as `read_projection`.
        """
        left_out = [self.prefix, f"{_TEXT}.", "model.logit_scale"]
        if self.of_labels:  # gliner makes an LSTM for such a model, and does not use it
            left_out += [self.of_labels.prefix, f"{_LABELS}.", "rnn."]
        with open_tensors(self.directory) as tensors:
            return {
                name.removeprefix("model."): _floats(name, tensor)
                for name, tensor in tensors.items()
                if not name.startswith(tuple(left_out))
            }


def _floats(name: str, tensor: Matrix) -> Floats:
    if tensor.dtype.kind != "f":
        raise ConversionError(f"the tensor {name.removeprefix('model.')} holds no floating-point numbers.")
    if not is_finite(tensor):
        raise ConversionError(f"the tensor {name.removeprefix('model.')} holds values that are not finite.")
    return np.asarray(tensor, np.float32)


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
        raise ConversionError(f"{GLINER}: model_type {STREAMING!r} is not supported, only GLiNER of encoders.")
    _check(GLINER, config, _GLINER)
    of_labels = _read_label_encoder(directory, config)
    encoder = _encoder(GLINER, config, "encoder_config", _SAVE)
    max_words, max_width = _count(GLINER, config, "max_len", 384), _count(GLINER, config, "max_width", 12)
    labelling = Labelling(
        scores="words" if config.get("span_mode") == "token_level" else "spans",
        marker="" if of_labels else _text(GLINER, config, "ent_token", "<<ENT>>"),
        separator="" if of_labels else _text(GLINER, config, "sep_token", "<<SEP>>"),
        label_rows="marker" if config.get("embed_ent_token", True) else "next",
        word_rows=config.get("subtoken_pooling") or "first",
        max_words=max_words,
        max_width=max_width,
    )
    encoder, max_tokens = _with_limit(encoder, directory, _TOKENS_PER_WORD * max_words)
    return LabelCheckpoint(
        directory=directory,
        settings=encoder,
        prefix="token_rep_layer.bert_layer.model.",
        max_tokens=max_tokens,
        tokenizer=directory,
        pooling="cls",
        projection=_TEXT,
        labelling=labelling,
        token=None if of_labels else _count(GLINER, config, "class_token_index", 0),
        of_labels=of_labels,
    )


def _read_label_encoder(directory: Path, config: Mapping[str, Any]) -> EncoderPart | None:
    """Returns the encoder that reads labels; None if they stand with the text."""
    if config.get("labels_encoder") is None:
        return None
    tokenizer = directory / LABELS_TOKENIZER
    encoder = _encoder(GLINER, config, "labels_encoder_config", _SAVE)
    if not tokenizer.is_dir():
        raise ConversionError(f"the checkpoint has no tokenizer of labels (folder {LABELS_TOKENIZER}); {_SAVE}.")
    encoder, max_tokens = _with_limit(encoder, tokenizer, _LABEL)
    return EncoderPart(
        directory=directory,
        settings=encoder,
        prefix="token_rep_layer.labels_encoder.model.",
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        pooling="mean",
        projection=_LABELS,
    )


def _read_gliclass(directory: Path) -> LabelCheckpoint:
    name = "config.json"
    config = read_object(directory / name)
    _check(name, config, _GLICLASS)
    encoder = _encoder(name, config, "encoder_config", "load it with gliclass and save it again with save_pretrained")
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
    encoder, max_tokens = _with_limit(encoder, directory, _PIPELINE)
    return LabelCheckpoint(
        directory=directory,
        settings=encoder,
        prefix="model.encoder_model.",
        max_tokens=max_tokens,
        tokenizer=directory,
        pooling="cls",
        projection=_TEXT,
        labelling=labelling,
        token=_count(name, config, "class_token_index", 0),
    )


def _check(file: str, config: Mapping[str, Any], known: Mapping[str, tuple[object, ...]]) -> None:
    for key, values in known.items():
        if config.get(key) not in values:
            named = " or ".join(repr(value) for value in values if value is not None) or "its absence"
            raise ConversionError(f"{file}: {key} {config[key]!r} is not supported, only {named}.")


def _encoder(file: str, config: Mapping[str, Any], key: str, step: str) -> dict[str, Any]:
    encoder = config.get(key)
    if not isinstance(encoder, dict):
        raise ConversionError(f"{file} does not describe the encoder ({key}); {step}.")
    return {"model_type": "deberta-v2"} | encoder


def _with_limit(encoder: dict[str, Any], tokenizer: Path, tokens: int) -> tuple[dict[str, Any], int]:
    """Returns an encoder as `_with_positions`, and the most tokens that it and the tokenizer in this folder read."""
    encoder, positions = _with_positions(encoder, tokens)
    return encoder, min(read_limits(tokenizer).max_tokens or positions, positions)


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
