"""Converts checkpoints of transformers exactly, or rejects them.

The conversion uses every tensor or lists it as ignored, checks every shape, and rejects by name each setting that it
does not implement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftlet_models import architectures, sources
from swiftlet_models.adapters import Adapter
from swiftlet_models.artifact import Embedding, Head, Outputs, Problem
from swiftlet_models.checkpoint_parameters import CheckpointParameters, NoHead
from swiftlet_models.checkpoint_settings import check_kind, read_labels, translate_config
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.label_checkpoints import EncoderPart
from swiftlet_models.tensors import Adapted, Matrix, Weights
from swiftlet_models.trunks import ENCODER

# transformers stores the outputs of every token classifier as `classifier`, the name of the outputs of a text
# classifier. A head that labels tokens is read from there, and never from the head of question answering.
_TOKEN_LABELS: Final = ((r"^classifier\.(weight|bias)$", r"token.output.\1"), (r"^qa_outputs\.", r"pretraining.span."))
_COLBERT: Final = ((r"^linear\.weight$", r"embedding.vectors.weight"),)  # in the class of Stanford's package


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A converted checkpoint and its origin."""

    weights: Weights  # named as in `architectures.traits` and `heads`
    architecture: str
    config: Mapping[str, Any]
    head: Head
    width: int  # outputs per position
    embedding: Embedding | None
    positions: int  # the most tokens of a sequence
    labels: tuple[str, ...]
    problem: Problem | None
    ignored: tuple[str, ...]  # tensors of the source that the model does not use
    source: Mapping[str, Any]  # directory name, or hub id and revision; `base` has those of an adapter's base
    merged: str | None = None  # why an adapter is merged into the encoder: a clause; None if it is not

    @property
    def network(self) -> tuple[str, Mapping[str, Any], Head, int, Embedding | None]:
        """The description of the network, as `heads.build` takes it."""
        return self.architecture, self.config, self.head, self.width, self.embedding


@contextmanager
def convert(
    directory: Path,
    head: Head,
    outputs: Outputs = "labels",
    *,
    source: Mapping[str, Any] | None = None,
    encoder_only: bool = False,
    embedding: Embedding | None = None,
    parameters: Weights | None = None,
    adapter: Adapter | EncoderPart | None = None,
) -> Iterator[ConvertedCheckpoint]:
    """Opens a transformers checkpoint as a network with this head. With `encoder_only`, it has no head yet.

    The weights can be read within the block. `outputs` is the number of outputs per position. If it is "labels", the
    checkpoint lists the labels. `embedding` describes the head `embedding`, whose `parameters` are not in the
    checkpoint. The weights are those of a directory, of an `adapter` merged into it, or of an encoder in a checkpoint
    that reads labels.

    Raises:
        ConversionError: a setting, tensor or shape is not supported, or a tensor that the head needs is missing.
    """
    settings = adapter.settings if adapter else read_object(directory / "config.json")
    if refusal := architectures.refusal(settings.get("model_type")):
        raise ConversionError(refusal)
    architecture = architectures.name_of(settings)
    # The head in whose place the checkpoint has the parameters.
    stored: Head = "masked_lm" if embedding and embedding.by_vocabulary else head
    config = translate_config(architecture, settings, stored)
    labels, problem = read_labels(settings) if outputs == "labels" else ((), None)
    if outputs == "labels" and not encoder_only:
        check_kind(settings, head)
    names = _TOKEN_LABELS if (head, outputs) == ("token", "labels") else _COLBERT if head == "embedding" else ()
    with adapter.open() if adapter else open_tensors(directory) as tensors:
        checkpoint = CheckpointParameters(architecture, config, stored, {**tensors, **(parameters or {})}, names)
        try:
            width = outputs if isinstance(outputs, int) else len(labels)
            sizes = checkpoint.check(width, embedding, encoder_only=encoder_only)
        except NoHead:
            raise ConversionError(_missing_head(settings, stored, outputs)) from None
        apart = None
        if isinstance(adapter, Adapter):
            apart = adapter.obstacle(checkpoint.config.traits(), checkpoint.weights, checkpoint.tensors)
        yield ConvertedCheckpoint(
            weights={name: _apart_or_merged(name, weight, apart) for name, weight in checkpoint.weights.items()},
            architecture=architecture,
            config=config,
            head=head,
            width=sizes.outputs,
            embedding=embedding,
            positions=sizes.positions,
            labels=labels,
            problem=problem if head == "classification" else None,
            ignored=tuple(checkpoint.ignored),
            source={
                **(source or {"directory": directory.resolve().name}),
                **({"base": adapter.origin} if adapter and adapter.origin else {}),
            },
            merged=apart,
        )


def _apart_or_merged(name: str, weight: Matrix, obstacle: str | None) -> Matrix:
    """Returns a parameter with what an adapter adds to it: apart in an encoder, unless there is an obstacle."""
    if isinstance(weight, Adapted) and (obstacle or not name.startswith(ENCODER)):
        return weight.merged()
    return weight


def _missing_head(settings: Mapping[str, Any], head: Head, outputs: Outputs) -> str:
    """Returns what to do with a checkpoint that has no head of this kind."""
    if named := sources.named_head(settings):
        name, task = settings["architectures"][0], sources.seems_for(settings)
        if named[1] == head and (named[0] == "qa") == (outputs == 2):
            return f"the head of {name} is not in the checkpoint. Save the whole model, and import that."
        return f"the checkpoint has no head for this task: config.json names {name}, which fits --task {task}."
    return (
        "the checkpoint has no trained head for this task. Fine-tune it for the task first, or make an embedding model "
        "of it: --task embed --pooling mean."
    )
