"""The predictions of a teacher on a serving engine, in int8: several times as fast as in PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import artifact as artifacts
from swiftlet_models.artifact import CARD, GOLDEN, MANIFEST, TOKENIZER, WEIGHTS, Artifact, Manifest
from swiftlet_models.heads import Classification, weights_of
from swiftlet_models.weights import save_weights
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.offline.draft import Draft, golden, golden_encodings
from swiftlet_serve.tasks import qa
from swiftlet_serve.types import Batch
from swiftlet_serve.workers.hosted_model import host_model
from swiftlet_train.examples.batches import make_batches
from swiftlet_train.examples.example import Example
from swiftlet_train.finetuning.logits import Logits
from swiftlet_train.finetuning.task_training import FinetunedTeacher

BATCH_SIZE: Final = 64


def predict(
    engine: str,
    directory: Path,
    teacher: FinetunedTeacher,
    examples: Sequence[Example],
    progress: Callable[[int, int], None] | None = None,
) -> list[Logits]:
    """Returns a teacher's logits for each example, (F, O), computed in int8.

    Computes a batch on each usable core, up to the engine's limit. Keeps the artifact in `directory`, so that
    `swiftlet evaluate` can measure the teacher.

    Raises:
        ArtifactError: the engine does not reproduce the network's outputs.
        SetupError: there is no such engine, or a package that it needs is not installed.
    """
    if not (directory / MANIFEST).is_file():
        _write(directory, teacher)
    hosted, _ = host_model([artifacts.open_artifact(directory)], engine)
    logits: dict[int, Logits] = {}
    batches = make_batches(examples, BATCH_SIZE, seed=0)

    def run(numbers: Sequence[int]) -> Sequence[Logits]:
        return hosted.engine.run(Batch.of([examples[i].encoding for i in numbers]))

    cores = usable_cores()
    with ThreadPoolExecutor(min(cores, hosted.engine.cost.max_calls or cores)) as pool:  # a call runs on one thread
        for done, (numbers, rows) in enumerate(zip(batches, pool.map(run, batches), strict=True), start=1):
            logits |= zip(numbers, rows, strict=True)
            if progress is not None:
                progress(done, len(batches))
    hosted.engine.close()
    return [logits[i] for i in range(len(examples))]


def _write(directory: Path, teacher: FinetunedTeacher) -> Artifact:
    """Writes an int8 artifact. Its folder has a manifest only once it is complete."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    model, labels = teacher.model, tuple(teacher.labels)
    config = model.encoder.config
    is_classifier = isinstance(model.head, Classification)
    manifest = Manifest(
        name="teacher",
        version="1",
        architecture=teacher.architecture,
        task=teacher.task,
        head="classification" if is_classifier else "token",
        precision="int8",
        max_tokens=model.encoder.max_tokens,
        vocab_size=config.vocab_size,
        width=len(labels) or qa.OUTPUTS,
        labels=labels,
        problem="single_label" if is_classifier else None,
        tolerance=1.0,
        config=dict(vars(config)),
        source={},
    )
    draft = Draft(weights_of(model), teacher.tokenizer, manifest, {})
    encodings = golden_encodings(teacher.tokenizer, manifest)
    answers: dict[str, Any] = golden(encodings, draft.answers(encodings))
    teacher.tokenizer.save(directory / TOKENIZER)
    save_weights(directory / WEIGHTS, draft.weights, "int8")
    np.savez_compressed(directory / GOLDEN, **answers)
    (directory / CARD).write_text("{}\n", "utf-8")
    return artifacts.seal(directory, manifest)
