"""Infers the task of a checkpoint from its files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftlet_models import pair_prompts, sentence_transformers, setfit, sources, static_embeddings
from swiftlet_models.checkpoint_tensors import ConversionError, read_object


def infer_task(directory: Path, source: str, settings: Mapping[str, Any] | None = None) -> str:
    """Returns the task of a checkpoint: what its head is for, or `embed` for a model of sentence-transformers.

    `source` is what the user calls it. Without `settings`, its `config.json` tells its head.

    Raises:
        ConversionError: the files do not tell the task, or cannot be read.
    """
    if labelled := sources.labelling_of(directory):
        return "entities" if labelled == sources.GLINER else "zero-shot"
    if setfit.is_classifier(directory) or static_embeddings.is_classifier(directory):
        return "classify"
    if static_embeddings.is_static(directory) or sentence_transformers.is_encoder(directory):
        return "embed"
    if settings is None and pair_prompts.answers_yes_or_no(directory, source):
        return "rerank"
    config = read_object(directory / "config.json") if settings is None else settings
    if task := sources.seems_for(config):
        return task
    classes = config.get("architectures")
    named = "names no class"
    if isinstance(classes, list) and classes:
        what = "which has no head" if sources.ENCODER.search(str(classes[0])) else "a class that no task reads"
        named = f"names {classes[0]}, {what}"
    word = shlex.quote(source)
    raise ConversionError(
        f"config.json of {source} {named}, so it does not tell the task. For vectors: "
        f"swiftlet serve {word}:task=embed,pooling=mean. For another task, fine-tune it first, or name the task: "
        f"swiftlet serve {word}:task=TASK with classify, entities, fill-mask, qa, rerank, score or zero-shot."
    )
