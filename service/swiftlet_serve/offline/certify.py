"""Certifies an artifact: compares its answers with those of its network in fp32, on built-in texts or on a file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from swiftlet_models import checkpoint_files
from swiftlet_models import sentence_transformers as sentences
from swiftlet_models.artifact import (
    GOLDEN,
    HEAD,
    OF_LABELS,
    SAFETENSORS,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    ArtifactError,
    seal,
)
from swiftlet_models.datasets import DatasetError
from swiftlet_models.operations import Operations
from swiftlet_models.weights import open_weights
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import LoadedModel, load_model
from swiftlet_serve.inference.model_source import ModelSource
from swiftlet_serve.offline import certificate
from swiftlet_serve.offline.certificate import Comparison
from swiftlet_serve.offline.evaluate import Measure, Progress, evaluate
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.offline.probe import Probe, run
from swiftlet_serve.offline.release import MAX_LOSS
from swiftlet_serve.offline.stage import FP32_TOLERANCE, measure_latency

Report = Callable[[str], None]


def certify(
    path: Path,
    checkpoint: ModelSource | None,
    measure: Measure | None,
    *,
    engine: str,
    report: Report,
    progress: Progress | None = None,
    task: str | None = None,
) -> None:
    """Writes the certificate of the artifact in `path`. What one that is there says of other texts stays.

    Args:
        path: the artifact.
        checkpoint: what the artifact was made of. None: its manifest tells, or it holds its weights in fp32.
        measure: a data file, with labels or without. None: the built-in texts.
        engine: the name of the engine whose answers are compared.
        report: called with a line about each step.
        progress: called with the number of finished requests and their total.
        task: one of the tasks that the model answers. None: the task of its manifest.

    Raises:
        ArtifactError: the artifact is invalid, or the engine does not reproduce its golden answers.
        ConversionError, SetupError: there are no weights in fp32, they are of another network, the model does not
            answer the task, or the certificate cannot be written.
        DatasetError: the file cannot be read for the model's task.
    """
    served = load_model(path, engine, task=task)
    artifact, title = served.artifact, served.engine.title
    before = certificate.comparisons(artifact)
    latency = {engine: measure_latency(served.engine, artifact.manifest)}
    if engine != "onnx_cpu":
        other = load_model(path, "onnx_cpu").engine
        latency["onnx_cpu"] = measure_latency(other, artifact.manifest)
        other.close()
    with tempfile.TemporaryDirectory(prefix="swiftlet-certify-") as temporary:
        exact, source = _in_fp32(artifact, checkpoint, Path(temporary), report)
        comparison = _compare(exact.for_task(served.task_name), served, measure, report, progress)
    if served.task_name != artifact.manifest.task:
        comparison = replace(comparison, task=served.task_name)
    others = [known for known in before if (known.texts, known.task) != (comparison.texts, comparison.task)]
    source = source or (artifact.certificate() or {}).get("source", artifact.manifest.source)
    certificate.write(artifact, source, title, latency, [*others, comparison])


def _in_fp32(
    artifact: Artifact, checkpoint: ModelSource | None, temporary: Path, report: Report
) -> tuple[LoadedModel, Mapping[str, Any] | None]:
    """Returns the artifact's network in fp32, and what is known of its source if that was read."""
    manifest, source = artifact.manifest, None
    if manifest.precision == "fp32":
        return load_model(artifact.path, "onnx_cpu"), None
    of_labels = [OF_LABELS] if manifest.of_labels else []
    weights = {f"{prefix}{WEIGHTS}": artifact.path / f"{prefix}{SAFETENSORS}" for prefix in ("", *of_labels)}
    if SAFETENSORS not in manifest.files:
        checkpoint = checkpoint or _origin(artifact)
        report(f"importing {checkpoint.source} in fp32")
        embedding, (directory, _) = manifest.embedding, checkpoint_files.locate(checkpoint.source, checkpoint.revision)
        imported, _ = import_checkpoint(
            checkpoint.source,
            manifest.task,
            temporary,
            name=manifest.name,
            revision=checkpoint.revision,
            precision="fp32",
            max_loss=MAX_LOSS,
            pooling=sentences.named_pooling(embedding)
            if embedding and not manifest.labelling and not sentences.is_encoder(directory)
            else None,
            accept_tokenizer=True,  # that of the artifact is used
            special_tokens=manifest.reading.special_tokens,
            pair_separator="",
            report=lambda _: None,
        )
        source = (imported.certificate() or {})["source"]
        weights = {name: imported.path / name for name in weights}
    exact = temporary / "exact" / manifest.name
    exact.mkdir(parents=True)
    same = {TOKENIZER, GOLDEN, HEAD, *(f"{prefix}{name}" for prefix in of_labels for name in (TOKENIZER, GOLDEN))}
    own = {name: artifact.path / name for name in sorted(same.intersection(manifest.files))}
    for name, file in (weights | own).items():
        shutil.copyfile(file, exact / name)
    seal(exact, replace(manifest, precision="fp32", tolerance=FP32_TOLERANCE), card={})
    try:
        return load_model(exact, "onnx_cpu"), source
    except ArtifactError:
        raise SetupError(
            f"The weights in fp32 do not give the golden answers of {manifest.name}, so it was made of others. Name "
            "the checkpoint that it was made of with --source."
        ) from None


def _origin(artifact: Artifact) -> ModelSource:
    origin = artifact.manifest.source
    if isinstance(hub := origin.get("hub"), str):
        return ModelSource(hub, origin.get("revision"))
    raise SetupError(
        f"{artifact.manifest.name} holds no weights in fp32 to compare with. Name the checkpoint that it was made of: "
        f"swiftlet certify {artifact.path} --source DIRECTORY"
    )


def _compare(
    exact: LoadedModel, served: LoadedModel, measure: Measure | None, report: Report, progress: Progress | None
) -> Comparison:
    """Compares the answers of two models, and closes both."""
    manifest = replace(served.manifest, task=served.task_name)
    probe = Probe.golden(served.tokenizer, manifest, served.head, served.label_tokenizer)
    if measure is None:
        report("comparing with fp32 on the built-in texts")
        with open_weights(exact.artifact.weights) as weights:
            shapes = {name: weight.shape for name, weight in weights.items()}
        operations = Operations.of(manifest.architecture, manifest.config, shapes, manifest.embedding)
        probe = probe.with_built_in_texts(served.tokenizer, manifest, operations)
    else:
        data = measure.data
        report(f"comparing with fp32 on {data.name}")
        try:
            fp32, other = (
                evaluate(model, data, limit=measure.limit, skip=measure.skip, progress=progress)
                for model in (exact, served)
            )
            return Comparison.of_labels(data, fp32, manifest.precision, other)
        except DatasetError as error:
            try:
                probe = probe.of_file(data, measure.skip, measure.limit)
            except DatasetError:
                raise error from None
    rows, others = (run(model.engine, probe.encodings) for model in (exact, served))
    kept = probe.fidelity(manifest, rows, others)
    return Comparison.of_texts(
        measure.data if measure else None, len(probe.requests), kept, probe.agreement(rows, others)
    )
