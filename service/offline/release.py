"""Turns a torch model into an artifact: export, quantisation, checks and measurements.

Each step is compared with the one before. An artifact that loses too much accuracy is not written.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from swiftlet_serve.models import artifact as artifacts
from swiftlet_serve.models.artifact import (
    CARD,
    GOLDEN,
    MANIFEST,
    ONNX,
    SAFETENSORS,
    TOKENIZER,
    Artifact,
    ArtifactError,
    Manifest,
)
from swiftlet_serve.models.tokenizer import Encoding, Tokenizer
from swiftlet_serve.service import tasks
from swiftlet_serve.service.engines.native import Native
from swiftlet_serve.service.errors import SetupError, SwiftletError
from swiftlet_serve.service.loading import LoadedModel, load_model
from swiftlet_serve.service.offline.environment import processor
from swiftlet_serve.service.offline.evaluate import (
    Evaluation,
    Progress,
    agreement,
    ask,
    evaluate,
    find_nearest,
    summary,
)
from swiftlet_serve.service.types import Batch
from swiftlet_serve.service.workers.golden import replay

if TYPE_CHECKING:
    import onnx

    from swiftlet_serve.models.heads import Model as Network
    from swiftlet_serve.models.training.recipe import Weakness

Report = Callable[[str], None]

FP32_TOLERANCE: Final = 1e-3  # between torch and ONNX Runtime, for logits around 10
MAX_LOSS: Final = 0.5  # points that int8 may lose on the data file
MAX_DEVIATION: Final = 0.1  # of int8 from fp32 on the golden inputs, relative; applies if there is no data file
SLACK: Final = 2.0  # tolerance as a multiple of the deviation on this machine: other CPUs round differently


DAMAGED: Final = "No artifact is written. Train or download the checkpoint again."


class ReleaseError(SetupError):
    """Raised when an artifact is not good enough to be written. The message is one sentence."""


@dataclass(frozen=True)
class Draft:
    """A trained network and its description. `release` fills in the tolerance and the files of the manifest."""

    network: Network
    tokenizer: Tokenizer
    manifest: Manifest
    card: Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """The part of a data file that a release is measured on."""

    data: Path
    limit: int | None = None
    skip: int = 0


def release(
    draft: Draft,
    directory: Path,
    measure: Measure | None = None,
    *,
    also: Sequence[Path] = (),
    weaknesses: Sequence[Weakness] = (),
    max_loss: float = MAX_LOSS,
    keep_fp32: bool = False,
    report: Report = lambda _: None,
    progress: Progress | None = None,
) -> Artifact:
    """Writes an artifact to `directory`. Replaces an artifact there, and nothing else.

    The manifest decides between fp32 and int8. ONNX Runtime's scores decide whether int8 is good enough; the scores on
    the native engine, if this machine can run it, are recorded in the card. Without a `measure`, int8 is compared with
    fp32 on the golden inputs only. The artifact is also measured on the files in `also`, which decide nothing.

    Args:
        weaknesses: known errors. The card records those that the model makes.
        max_loss: points of the main score that int8 may lose.
        keep_fp32: add the fp32 weights, for the torch engine.

    Raises:
        ReleaseError: int8 loses too much, or the network's weights or answers are not finite.
        ArtifactError: ONNX Runtime's outputs differ from torch's.
        SetupError: `directory` exists and is no artifact, or the tokenizer does not fit the task.
    """
    from swiftlet_serve.models.graphs.export import export, golden
    from swiftlet_serve.models.graphs.quantize import quantize

    if directory.exists() and not (directory / MANIFEST).is_file():
        raise SetupError(f"{directory} exists and is not an artifact. Remove it, or choose another directory.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=directory.parent) as temporary:
        _check_weights(draft.network)
        report("exporting to ONNX")
        graph = export(draft.network)
        answers = golden(draft.network, golden_encodings(draft.tokenizer, draft.manifest))
        if not np.isfinite(answers["rows"]).all():
            raise ReleaseError(f"The network answers built-in texts with NaN or infinity. {DAMAGED}")
        stage = _Stage(
            path=Path(temporary, "fp32"),
            manifest=replace(draft.manifest, precision="fp32", tolerance=FP32_TOLERANCE),
            measure=measure,
            report=report,
            progress=progress,
            card=dict(draft.card) | {"scores": {}},
        )
        stage.write(draft.tokenizer, graph, answers)
        fp32 = stage.record_scores()
        if draft.manifest.precision == "int8":
            report("quantising to int8")
            exact, stage = stage, replace(stage, path=Path(temporary, "int8"))
            stage.write(draft.tokenizer, quantize(graph), answers)
            max_deviation = MAX_DEVIATION if measure is None else np.inf  # with a data file, the scores decide
            tolerance = stage.int8_tolerance(answers["rows"], max_deviation)
            stage = replace(stage, manifest=replace(stage.manifest, precision="int8", tolerance=tolerance))
            int8 = stage.record_scores()
            stage.card["int8"] = _compare(fp32, int8, max_loss)
            stage.record_native(fp32, also)
            for data in also:
                found = exact.evaluate(exact.load(), Measure(data))
                stage.record_also(data, {"fp32": summary(found)["scores"]})
        for data in also:
            stage.record_also(data, summary(stage.evaluate(stage.load(), Measure(data))))
        if weaknesses:
            stage.record_weaknesses(weaknesses)
        if keep_fp32:
            _write_weights(stage.path, draft.network)
        artifacts.seal(stage.path, stage.manifest, stage.card)
        if directory.exists():
            directory.rename(Path(temporary, "replaced"))
        stage.path.rename(directory)
    return artifacts.open_artifact(directory)


def _check_weights(network: Network) -> None:
    """Raises ReleaseError if a weight is NaN or infinite. Texts that do not reach it would not show it."""
    for name, tensor in network.state_dict().items():
        if not tensor.isfinite().all():
            raise ReleaseError(f"The network's parameter {name} holds NaN or infinity. {DAMAGED}")


def golden_encodings(tokenizer: Tokenizer, manifest: Manifest) -> list[Encoding]:
    """Encodes the requests that an artifact's golden answers record.

    Raises:
        SetupError: the tokenizer or the manifest does not fit the task.
    """
    definition = tasks.load(manifest.task)
    try:
        task = definition.create(tokenizer, manifest)
        requests = [task.Request.model_validate(body) for body in tasks.golden_bodies(definition, tokenizer)]
        return [encoding for request in requests for encoding in task.encode(request)]
    except (SwiftletError, ValueError) as error:
        raise SetupError(f"No golden answers can be made: {error}") from None


@dataclass(frozen=True)
class _Stage:
    """An artifact in the making. `card` collects the results, and is written at the end."""

    path: Path
    manifest: Manifest
    measure: Measure | None
    report: Report
    progress: Progress | None
    card: dict[str, Any] = field(default_factory=dict)

    def write(self, tokenizer: Tokenizer, graph: onnx.ModelProto, answers: Mapping[str, Any]) -> None:
        """Writes all files but the manifest. The card is empty for now."""
        self.path.mkdir()
        tokenizer.save(self.path / TOKENIZER)
        (self.path / ONNX).write_bytes(graph.SerializeToString(deterministic=True))
        np.savez_compressed(self.path / GOLDEN, **answers)
        (self.path / CARD).write_text("{}\n", "utf-8")

    def load(self, engine: str = "onnx_cpu") -> LoadedModel:
        """Loads the model, which replays its golden answers."""
        artifacts.seal(self.path, self.manifest)
        return load_model(self.path, engine)

    def evaluate(self, model: LoadedModel, measure: Measure, label: str = "") -> Evaluation:
        """Measures a model and closes it. `label` names it in the progress report; default: the precision."""
        self.report(f"measuring {label or self.manifest.precision} on {measure.data.name}")
        return evaluate(model, measure.data, limit=measure.limit, skip=measure.skip, progress=self.progress)

    def int8_tolerance(self, answers: Any, max_deviation: float) -> float:
        """Returns the tolerance of the golden answers of an int8 artifact.

        Raises:
            ReleaseError: the outputs deviate from fp32 by more than `max_deviation` of the largest golden answer.
        """
        artifact = artifacts.seal(self.path, replace(self.manifest, precision="int8", tolerance=1e9))
        model = load_model(self.path, "onnx_cpu")
        deviation = replay(artifact, model.engine)
        model.engine.close()
        if deviation > max_deviation * np.abs(answers).max():
            raise ReleaseError(
                f"int8 answers differ from fp32 ones by up to {deviation:.3g}, so the artifact is not written."
            )
        return max(SLACK * deviation, FP32_TOLERANCE)

    def record_scores(self) -> Evaluation | None:
        """Records the latency and, if there is a data file, the scores. Returns the evaluation."""
        model = self.load()
        self.card["latency"] = _latency(model)
        self.card["bytes"] = model.artifact.manifest.files[ONNX].size
        if self.measure is None:
            model.engine.close()
            return None
        evaluation = self.evaluate(model, self.measure)
        self.card["data"] = {"file": self.measure.data.name, "skip": self.measure.skip, "limit": self.measure.limit}
        found = summary(evaluation)
        self.card["scores"] |= {self.manifest.precision: found["scores"], "trivial": found["trivial"]}
        if "upper_bounds" in found:
            self.card.setdefault("upper_bounds", {})[self.manifest.precision] = found["upper_bounds"]
        return evaluation

    def record_also(self, data: Path, found: Mapping[str, Any]) -> None:
        """Adds results on a further file to those that the card has."""
        also = self.card.setdefault("also", {})
        also[data.name] = {**also.get(data.name, {}), **found}

    def record_native(self, fp32: Evaluation | None, also: Sequence[Path]) -> None:
        """Records the results of the native engine, which rounds differently. Does nothing if it cannot run here."""
        try:
            model = self.load("native")
        except ArtifactError as error:
            self.report(f"the native engine rejects the artifact, so serve it with onnx_cpu: {error}")
            self.card["native"] = {"refused": str(error)}
            return
        if not isinstance(model.engine, Native):  # it fell back to another engine
            model.engine.close()
            return
        results: dict[str, Any] = {"engine": model.engine.title, "latency": _latency(model)}
        self.card["native"] = results
        if self.measure is None or fp32 is None:
            model.engine.close()
            return
        evaluation = self.evaluate(model, self.measure, model.engine.title)
        results["scores"] = summary(evaluation)["scores"]
        results["loss"] = fp32.main.value - evaluation.main.value
        results["agreement"] = asdict(agreement(fp32, evaluation))
        for data in also:
            found = summary(self.evaluate(self.load("native"), Measure(data), model.engine.title))
            self.record_also(data, {"native": found["scores"]})

    def record_weaknesses(self, weaknesses: Sequence[Weakness]) -> None:
        """Records the known errors that the model makes."""
        self.card["weaknesses"] = find_errors(self.load(), weaknesses, self.report)


def find_errors(model: LoadedModel, weaknesses: Sequence[Weakness], report: Report) -> list[dict[str, Any]]:
    """Returns the known errors that a model makes, as recorded in its card, and closes the model."""
    if model.task_name == "embed":
        answers = find_nearest(model, [(one.inputs, one.texts) for one in weaknesses])
    else:
        answers = ask(model, [one.inputs for one in weaknesses])
    found = []
    for weakness, answer in zip(weaknesses, answers, strict=True):
        if answer == weakness.right:
            report(f"answers correctly, so this weakness is not recorded: {weakness.about}")
        else:
            known = asdict(weakness)
            if not weakness.texts:
                del known["texts"]
            found.append(known | {"answer": answer})
    return found


def _write_weights(path: Path, network: Network) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path / SAFETENSORS)


def _compare(fp32: Evaluation | None, int8: Evaluation | None, max_loss: float) -> str | dict[str, Any]:
    """Returns the loss of int8 and its agreement with fp32, as recorded in the card.

    Raises:
        ReleaseError: the loss exceeds `max_loss`, or the agreement is too low for the task.
    """
    if fp32 is None or int8 is None:
        return "compared with fp32 on the golden inputs only"
    loss = fp32.main.value - int8.main.value
    if not loss <= max_loss:  # also true if either is NaN
        raise ReleaseError(
            f"int8 loses {loss:.2f} points, and at most {max_loss} are allowed, so the artifact is not written."
        )
    same = agreement(fp32, int8)
    if same.value < fp32.min_agreement:
        raise ReleaseError(
            f"int8 agrees with fp32 to {same.value:.2f} %, and at least {fp32.min_agreement} % are required, so the "
            "artifact is not written."
        )
    return {"loss": loss, "agreement": asdict(same)}


def _latency(model: LoadedModel, tokens: int = 32, calls: int = 30) -> dict[str, Any]:
    """Measures the median latency of one sequence, in milliseconds, and names the processor."""
    ids = np.full(tokens, 5, np.int64)
    batch = Batch.of([Encoding(ids, np.zeros_like(ids), np.zeros(1, np.int64))])
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        model.engine.run(batch)
        times.append(time.perf_counter() - started)
    return {"tokens": tokens, "milliseconds": round(1000 * float(np.median(times)), 3), "machine": processor()}
