"""The checkpoints of teachers: encoders with layers like BERT's, in installed packages or in directories."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from torch import nn

from swiftlet_models import convert
from swiftlet_models.architectures.layers import Encoder
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.heads import build, fill
from swiftlet_models.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class TeacherCheckpoint:
    """The encoder of a teacher, with frozen parameters."""

    architecture: str
    encoder: Encoder


def load_teacher(package: str) -> TeacherCheckpoint:
    """Loads the encoder of a teacher. `package` may also be a directory.

    Raises:
        ConversionError: the package is not installed, or holds no checkpoint with layers like BERT's.
    """
    with convert.convert(find_checkpoint(package), "masked_lm", "vocabulary", encoder_only=True) as converted:
        encoder = fill(build(*converted.network), converted.weights).encoder
    traits = encoder.config.traits()
    if traits.bottleneck is not None or traits.embedding.projection != "none" or len(traits.feed_forward) != 1:
        raise ConversionError(f"the teacher's package {package} holds no checkpoint of a BERT.")
    return TeacherCheckpoint(converted.architecture, encoder.requires_grad_(False))


def load_teacher_tokenizer(package: str) -> tokenizers.Tokenizer:
    """Loads the tokenizer of a teacher.

    Raises:
        ConversionError: the package is not installed, or holds no tokenizer.
    """
    path = find_checkpoint(package) / "tokenizer.json"
    if not path.is_file():
        raise ConversionError(f"the teacher {package} has no tokenizer.json.")
    return tokenizers.Tokenizer.from_file(str(path))


def load_own_tokenizer(package: str) -> Tokenizer:
    """Loads the tokenizer of a teacher. It reads texts whole and as a task does.

    Raises:
        ConversionError: the package is not installed.
        TokenizerError: the tokenizer is not supported.
    """
    return Tokenizer.from_directory(find_checkpoint(package))


def find_checkpoint(package: str) -> Path:
    """Returns the folder `model/` of an installed package, or the directory if `package` is one.

    Raises:
        ConversionError: the package is not installed.
    """
    if "/" in package or Path(package).is_dir():
        if not Path(package).is_dir():
            raise ConversionError(f"there is no directory {package}, which should hold a teacher.")
        return Path(package)
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # of a name with dots
        spec = None
    if spec is None or spec.origin is None:
        raise ConversionError(f"the teacher's package {package} is not installed.")
    return Path(spec.origin).parent / "model"


def prune_embeddings(encoder: Encoder, kept: Sequence[int]) -> None:
    """Reduces an encoder's word embeddings to the rows `kept`, in that order."""
    rows = encoder.embeddings.word.weight.data[torch.tensor(kept)]
    table = nn.Embedding(len(kept), rows.shape[1])
    table.weight.data = rows
    encoder.embeddings.word = table.requires_grad_(False)
