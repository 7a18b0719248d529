"""An artifact in the making: its files in one precision, and what was measured on it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import artifact as artifacts
from swiftlet_models.artifact import (
    CARD,
    GOLDEN,
    HEAD,
    OF_LABELS,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    ArtifactError,
    File,
    Manifest,
    Precision,
)
from swiftlet_models.encodings import Encoding
from swiftlet_models.tensors import Matrix, Weights, WeightsError, blocks
from swiftlet_models.weights import open_weights, save_weights
from swiftlet_serve.engines._shared_trunk import Apart
from swiftlet_serve.engines.native import Native
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import LoadedModel, load_model, open_model
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.offline import certificate
from swiftlet_serve.offline.activations import write_ranges
from swiftlet_serve.offline.certificate import Comparison
from swiftlet_serve.offline.draft import Draft, ReleaseError, golden
from swiftlet_serve.offline.environment import processor
from swiftlet_serve.offline.evaluate import Evaluation, Measure, Progress, agreement, evaluate, summary
from swiftlet_serve.offline.fidelity import Fidelity, Outputs
from swiftlet_serve.offline.int8_gate import judge, loss_of
from swiftlet_serve.offline.probe import Probe, run
from swiftlet_serve.types import Batch, Engine, helped_s
from swiftlet_serve.workers import golden as golden_answers
from swiftlet_serve.workers.hosted_model import host_model

Report = Callable[[str], None]

FP32_TOLERANCE: Final = 1e-3  # between engines, for logits around 10
MAX_ROUNDING: Final = 0.05  # of a matrix, relative: in a block of 128, half a step is at most √128 / 254 of the block
TIMED_TOKENS: Final = 32
TIMED_LABEL_TOKENS: Final = 8
CALLS: Final = 10  # whose latency is measured
FEW_CALLS: Final = 3  # of a network that takes longer
LATENCY_S: Final = 0.3  # for all calls
SLACK: Final = 2.0  # tolerance as a multiple of the deviation on this machine: other CPUs round differently


@dataclass(frozen=True)
class Stage:
    """An artifact in the making. `card` and `comparisons` collect the results, and are written at the end."""

    draft: Draft
    probe: Probe  # the golden inputs, and built-in texts
    exact: Outputs  # of the network in fp32 for them
    golden: int  # sequences of the golden inputs, the first ones
    path: Path
    manifest: Manifest
    measure: Measure | None
    report: Report
    progress: Progress | None
    card: dict[str, Any] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)

    def write(self) -> None:
        """Writes all files but the manifest. The card is empty for now."""
        self.path.mkdir()
        self.draft.tokenizer.save(self.path / TOKENIZER)
        if self.draft.of_labels is not None:
            self.draft.of_labels.tokenizer.save(self.path / f"{OF_LABELS}{TOKENIZER}")
        if self.draft.head is not None:
            save_weights(self.path / HEAD, self.draft.head, "fp32")
        pairs = list(zip(self.probe.encodings[: self.golden], self.exact[: self.golden], strict=True))
        labels = {encoding.input_ids.tobytes(): (encoding, row) for encoding, row in pairs if encoding.head}
        texts = [pair for pair in pairs if not pair[0].head]
        for prefix, (file, weights), own in zip(("", OF_LABELS), self.networks, (texts, labels.values()), strict=False):
            save_weights(file, weights, self.manifest.precision)
            answers: dict[str, Any] = golden(*zip(*own, strict=True))
            np.savez_compressed(self.path / f"{prefix}{GOLDEN}", **answers)
        (self.path / CARD).write_text("{}\n", "utf-8")

    @property
    def networks(self) -> Sequence[tuple[Path, Weights]]:
        """The file of each network's parameters, and what they are in fp32."""
        files = [self.path / f"{prefix}{WEIGHTS}" for prefix in ("", OF_LABELS)]
        return [(file, weights) for file, (_, weights) in zip(files, self.draft.networks, strict=False)]

    def host(self, engine: str, cores: int = 1) -> tuple[Engine, float]:
        """Loads the network alone into an engine, which replays its golden answers. The caller closes it.

        Returns the engine, and its deviation from the golden answers.

        Raises:
            ArtifactError: the engine cannot run the network, or deviates by more than the tolerance.
        """
        hosted, deviation = host_model([self.unverified()], engine, cores)
        return hosted.engine, deviation or 0.0

    def unverified(self) -> Artifact:
        """Returns the artifact so far. No hash is computed, because the files have just been written."""
        files = {file.name: File(file.stat().st_size, "") for file in self.path.iterdir()}
        return Artifact(self.path, replace(self.manifest, files=files))

    def load(self, engine: str = "onnx_cpu") -> LoadedModel:
        """Loads the model with its task."""
        artifacts.seal(self.path, self.manifest)
        return load_model(self.path, engine)

    def record_ranges(self) -> None:
        """Writes ranges of activations from the texts of the data file, if there is one and the network has them."""
        if self.measure is None:
            return
        artifacts.seal(self.path, self.manifest)
        try:
            model = open_model(self.path, "onnx_cpu")
            self.card["activations"] = write_ranges(model, self.measure.data, self.measure.limit)
        except SetupError as error:
            self.report(f"activations keep a scale for each token: {error}")

    def evaluate(self, model: LoadedModel, measure: Measure, label: str = "") -> Evaluation:
        """Measures a model and closes it. `label` names it in the progress report; default: the precision."""
        self.report(f"measuring {label or self.manifest.precision} on {measure.data.name}")
        return evaluate(model, measure.data, limit=measure.limit, skip=measure.skip, progress=self.progress)

    def round(self, fp32: Evaluation | None, max_loss: float) -> tuple[Stage, str]:
        """Writes the weights in the stage's precision, and compares their answers with those of fp32.

        Returns the stage with its tolerance, and why the precision is refused: a clause, or an empty text.
        """
        precision = self.manifest.precision
        try:
            self.write()
        except WeightsError:
            return self, "cannot hold a weight, which is too large"
        for file, weights in self.networks:
            _check_rounding(file, weights, precision)
        if precision == "int8":
            self.record_ranges()
        unlimited = replace(self, manifest=replace(self.manifest, tolerance=sys.float_info.max))
        try:
            engine, deviation = unlimited.host_serving()
            kept = self.record_fidelity(engine)
            if self.measure is None and (refusal := judge(None, None, kept, max_loss).refusal):
                return self, refusal
            stage = replace(self, manifest=replace(self.manifest, tolerance=unlimited.tolerance()))
            if self.runs_native:
                kept = stage.confirm_native(engine, deviation, kept)
        except ArtifactError as error:
            return self, f"fails ({str(error).removesuffix('.')})"
        rounded = stage.record_scores()
        if fp32 is not None and rounded is not None:
            self.card[precision] = _compare(fp32, rounded)
        else:
            self.card[precision] = "compared with fp32 on built-in texts only"
        served = stage.record_native_scores(fp32) or rounded
        if self.measure and fp32 and served:
            self.comparisons.append(Comparison.of_labels(self.measure.data, fp32, precision, served))
        verdict = judge(fp32, served, kept, max_loss)
        if verdict.warning:
            self.report(f"warning: {precision} {verdict.warning}")
        return stage, verdict.refusal

    def refuse(self, reason: str) -> None:
        """Records why this precision is not good enough, in place of what is true of it alone."""
        self.comparisons.clear()
        for key in ("native", "fidelity", "activations"):
            self.card.pop(key, None)
        self.card["precision"] = reason

    def tolerance(self) -> float:
        """Returns the tolerance of the golden answers of a rounded network, from their deviation in ONNX Runtime.

        Raises:
            ArtifactError: an answer is not finite.
        """
        engine, deviation = self.host("onnx_cpu")
        self.record_latency(engine)
        return max(SLACK * deviation, FP32_TOLERANCE)

    def record_latency(self, engine: Engine) -> None:
        """Records the latency and the size of the weights, and closes the engine."""
        self.card["latency"] = measure_latency(engine, self.manifest)
        self.card["bytes"] = sum(file.stat().st_size for file, _ in self.networks)
        engine.close()

    def record_scores(self) -> Evaluation | None:
        """Records the scores and returns the evaluation, if there is a data file."""
        if self.manifest.precision == "fp32":
            self.record_latency(self.host("onnx_cpu")[0])
        if self.measure is None:
            return None
        evaluation = self.evaluate(self.load(), self.measure)
        self.card["data"] = {"file": self.measure.data.name, "skip": self.measure.skip, "limit": self.measure.limit}
        results = summary(evaluation)
        self.card["scores"] |= {self.manifest.precision: results["scores"], "trivial": results["trivial"]}
        if "upper_bounds" in results:
            self.card.setdefault("upper_bounds", {})[self.manifest.precision] = results["upper_bounds"]
        return evaluation

    def record_also(self, data: Path, results: Mapping[str, Any]) -> None:
        """Adds results on a further file to those that the card has."""
        also = self.card.setdefault("also", {})
        also[data.name] = {**also.get(data.name, {}), **results}

    def host_serving(self) -> tuple[Engine, float]:
        """Returns the engine that serves the network here, with its deviation from the golden answers.

        The native engine uses all cores, and its latency is recorded.

        Raises:
            ArtifactError: as `host`.
        """
        try:
            engine, deviation = self.host("native", usable_cores())
        except ArtifactError as error:
            return self.host_instead(error)
        parts = engine.engines if isinstance(engine, Apart) else [engine]
        if all(isinstance(part, Native) for part in parts):  # none fell back to another engine
            self.card["native"] = {"engine": engine.title, "latency": measure_latency(engine, self.manifest)}
        return engine, deviation

    def host_instead(self, error: ArtifactError) -> tuple[Engine, float]:
        """Records why the native engine does not serve, and returns the engine that does, as `host`."""
        self.report(f"the native engine rejects the artifact, which onnx_cpu serves instead: {error}")
        self.card["native"] = {"refused": str(error)}
        return self.host("onnx_cpu")

    def confirm_native(self, engine: Engine, deviation: float, kept: Fidelity) -> Fidelity:
        """Returns the fidelity of the native engine, or that of ONNX Runtime if the former deviates too far."""
        try:
            golden_answers.check_deviation(self.unverified(), engine, deviation)
        except ArtifactError as error:
            self.comparisons.clear()
            return self.record_fidelity(self.host_instead(error)[0])
        return kept

    def record_native_scores(self, fp32: Evaluation | None) -> Evaluation | None:
        """Records and returns the results of the native engine, which rounds differently; None if there are none."""
        if self.measure is None or fp32 is None or not self.runs_native:
            return None
        model = self.load("native")
        evaluation = self.evaluate(model, self.measure, model.engine.title)
        self.card["native"] |= {"scores": summary(evaluation)["scores"]} | _compare(fp32, evaluation)
        return evaluation

    def record_fidelity(self, engine: Engine) -> Fidelity:
        """Records and returns the fidelity of the answers to built-in texts, and closes the engine."""
        title, rounded = engine.title, run(engine, self.probe.encodings)
        kept = self.probe.fidelity(self.manifest, self.exact, rounded)
        self.card["fidelity"] = {"engine": title, **asdict(kept)}
        answers = self.probe.agreement(self.exact, rounded) if math.isfinite(kept.mean) else None
        self.comparisons.append(Comparison.of_texts(None, len(self.probe.requests), kept, answers))
        return kept

    def certify(self, sealed: Artifact, source: Mapping[str, Any]) -> None:
        """Writes the certificate."""
        native = self.card.get("native", {})
        latencies = {"onnx_cpu": self.card["latency"]} | ({"native": native["latency"]} if self.runs_native else {})
        engine = native.get("engine", "onnx_cpu")
        certificate.write(sealed, source, engine, latencies, self.comparisons)

    @property
    def runs_native(self) -> bool:
        """Whether the native engine can run the artifact here. `host_serving` finds it out."""
        return "engine" in self.card.get("native", {})


def _check_rounding(file: Path, weights: Weights, precision: Precision) -> None:
    """Raises ReleaseError if a stored matrix differs from the network's by more than rounding can."""
    with open_weights(file) as stored:
        for name, weight in weights.items():
            if not all(_is_rounded(stored[name], weight, rows) for rows in blocks(weight)):
                raise ReleaseError(
                    f"{precision} changes the parameter {name} by more than rounding. Please report this."
                )


def _is_rounded(stored: Matrix, weight: Matrix, rows: slice) -> bool:
    own = weight[rows]
    try:
        difference = np.linalg.norm(stored[rows] - own)
    except WeightsError:  # it is not finite
        return False
    return bool(difference <= MAX_ROUNDING * np.linalg.norm(own))


def _compare(fp32: Evaluation, rounded: Evaluation) -> dict[str, Any]:
    """Returns the loss of rounding in points, its interval and the agreement with fp32, as recorded in the card."""
    loss = loss_of(fp32, rounded)
    return {"loss": loss.value, "low": loss.low, "high": loss.high, "agreement": asdict(agreement(fp32, rounded))}


def measure_latency(engine: Engine, manifest: Manifest) -> dict[str, Any]:
    """Measures the median latency of one sequence on one core, in milliseconds, and names the processor.

    With an encoder of labels, `label` has the latency of one label, whose vector is kept for later requests.
    """
    measured = _latency(engine, manifest, TIMED_TOKENS, head=0)
    if manifest.of_labels is not None:
        measured["label"] = _latency(engine, manifest.of_labels, TIMED_LABEL_TOKENS, head=1)
    return measured | {"machine": processor()}


def _latency(engine: Engine, manifest: Manifest, tokens: int, head: int) -> dict[str, Any]:
    tokens = min(tokens, manifest.max_tokens)
    ids = np.full(tokens, min(5, manifest.vocab_size - 1), np.int64)
    batch = Batch.of([Encoding(ids, np.zeros_like(ids), np.zeros(1, np.int64), head=head)])
    times: list[float] = []
    while len(times) < CALLS and (len(times) < FEW_CALLS or sum(times) < LATENCY_S):
        started = time.perf_counter()
        engine.run(batch)
        times.append(time.perf_counter() - started + helped_s(engine))
    return {"tokens": tokens, "milliseconds": round(1000 * float(np.median(times)), 3)}
