"""Imports a transformers checkpoint as an artifact."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from swiftlet_serve.models import checkpoint_card, convert
from swiftlet_serve.models import sentence_transformers as sentences
from swiftlet_serve.models.artifact import IMPORTED, LANGUAGE, NAME, Artifact, Manifest, Pooling, Precision
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.offline.evaluate import Progress
from swiftlet_serve.service.offline.release import Draft, Measure, release

FP32: Final = "Import it with --precision fp32"
DATA: Final = f"{FP32}, or let your own examples decide: --data FILE with some hundreds of them."
MORE_DATA: Final = f"{FP32}, measure on more examples with --data, or allow a larger loss with --max-loss."


def import_checkpoint(
    source: str,
    task: str,
    out: Path,
    *,
    name: str | None = None,
    revision: str | None = None,
    precision: Precision = "int8",
    measure: Measure | None = None,
    max_loss: float,
    keep_fp32: bool = False,
    pooling: Pooling | None = None,
    languages: Sequence[str] = (),
    report: Callable[[str], None],
    progress: Progress | None = None,
) -> tuple[Artifact, tuple[str, ...]]:
    """Converts `source`, a directory or a hub id, and releases it as `out/name`.

    `pooling` makes an encoder of transformers an embedding model. A directory of sentence-transformers has its own.
    `languages` are BCP 47 tags. Default: those of the checkpoint's model card.

    Returns the artifact and the names of the ignored tensors.

    Raises:
        ConversionError: the checkpoint cannot be converted exactly.
        TokenizerError: the tokenizer is not supported.
        ReleaseError, ArtifactError: as `release`.
        SetupError: the task does not exist, the name or a language is invalid, or the tokenizer does not fit.
    """
    directory, origin = convert.locate(source, revision)
    name = name or re.sub(r"[^a-z0-9._-]+", "-", source.rstrip("/").rsplit("/", 1)[-1].lower()).strip("-.")
    if not NAME.fullmatch(name):
        raise SetupError(
            f"{name!r} is not a valid name. Set one with --name: lower-case letters, digits and the characters . _ -."
        )
    for language in languages:
        if not LANGUAGE.fullmatch(language):
            raise SetupError(f"{language!r} is not a language tag. Write one such as en, ko or zh-Hant.")
    languages = tuple(languages) or checkpoint_card.languages(directory)
    report("reading the checkpoint")
    definition = tasks.load(task)
    head, outputs = definition.HEAD, definition.OUTPUTS
    if "embedding" in getattr(definition, "OTHER_HEADS", {}) and (pooling or sentences.is_encoder(directory)):
        head, outputs = "embedding", "hidden"
    if pooling and head != "embedding":
        raise SetupError(f"The task {task} has no use for --pooling. Leave it out.")
    encoder = sentences.read_encoder(directory, pooling) if head == "embedding" else None
    directory = encoder.checkpoint if encoder else directory
    converted = convert.convert(
        directory,
        head,
        outputs,
        source=origin,
        embedding=encoder.embedding if encoder else None,
        parameters=encoder.dense if encoder else None,
    )
    problem = converted.problem
    if head == "classification" and getattr(definition, "CROSS_ENCODER", False):
        problem = sentences.cross_encoder_problem(directory)
    tokenizer = Tokenizer.from_directory(directory)
    network, config = converted.model, converted.model.encoder.config
    if tokenizer.vocab_size > config.vocab_size:
        raise SetupError("The tokenizer has more tokens than the network, so it belongs to another checkpoint.")
    manifest = Manifest(
        name=name,
        version="1",
        architecture=converted.architecture,
        task=task,
        head=head,
        precision=precision,
        max_tokens=min(network.encoder.max_tokens, (encoder and encoder.max_tokens) or network.encoder.max_tokens),
        vocab_size=config.vocab_size,
        width=tasks.head_width(outputs, len(converted.labels), config.vocab_size, getattr(network.head, "width", 0)),
        labels=converted.labels,
        problem=problem,
        tolerance=1.0,
        config=converted.config,
        source=converted.source,
        embedding=encoder.embedding if encoder else None,
        languages=languages,
    )
    summary = f"{IMPORTED}{origin.get('hub') or origin['directory']}."
    card = {"summary": summary, "ignored_tensors": list(converted.ignored)}
    draft = Draft(converted.model, tokenizer, manifest, card)
    artifact = release(
        draft,
        out / name,
        measure,
        max_loss=max_loss,
        keep_fp32=keep_fp32,
        advice=MORE_DATA if measure else DATA,
        report=report,
        progress=progress,
    )
    return artifact, converted.ignored
