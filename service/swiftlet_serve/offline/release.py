"""Turns a network into an artifact: quantisation, checks and measurements.

Each step is compared with the one before. An artifact that loses too much accuracy is not written.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import artifact as artifacts
from swiftlet_models.artifact import (
    CARD,
    GOLDEN,
    HEAD,
    MANIFEST,
    SAFETENSORS,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    ArtifactError,
    File,
    Manifest,
    Precision,
)
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import FoldingError
from swiftlet_models.folding import fold
from swiftlet_models.graphs.ragged import in_fp32
from swiftlet_models.labelling import Head
from swiftlet_models.operations import Operations
from swiftlet_models.parameters import ParametersError, check_parameters, configure
from swiftlet_models.tensors import Matrix, Weights, WeightsError, blocks, is_finite
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.weights import open_weights, save_weights
from swiftlet_serve.engines.native import Native
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import LoadedModel, load_model, open_model
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.offline import certificate
from swiftlet_serve.offline.activations import write_ranges
from swiftlet_serve.offline.certificate import Comparison
from swiftlet_serve.offline.environment import processor
from swiftlet_serve.offline.evaluate import (
    Evaluation,
    Progress,
    agreement,
    ask,
    evaluate,
    find_nearest,
    summary,
)
from swiftlet_serve.offline.fidelity import Fidelity, Outputs
from swiftlet_serve.offline.int8_gate import judge, loss_of
from swiftlet_serve.offline.probe import Probe, run
from swiftlet_serve.types import Batch, Engine
from swiftlet_serve.workers.hosted_model import host_model

if TYPE_CHECKING:
    from swiftlet_models.weakness import Weakness

Report = Callable[[str], None]

GOLDEN_COLUMNS: Final = 512  # of an output; with the whole vocabulary the golden answers would take megabytes
FP32_TOLERANCE: Final = 1e-3  # between engines, for logits around 10
MAX_ROUNDING: Final = 0.05  # of a matrix, relative: in a block of 128, half a step is at most √128 / 254 of the block
MAX_LOSS: Final = 0.5  # points that int8 or bf16 may lose on a data file
SLACK: Final = 2.0  # tolerance as a multiple of the deviation on this machine: other CPUs round differently

LADDER: Final[Sequence[Precision]] = ("int8", "bf16", "fp32")  # the smallest first
DAMAGED: Final = "No artifact is written. Train or download the checkpoint again."


class ReleaseError(SetupError):
    """Raised when an artifact is not good enough to be written. The message is one sentence."""


@dataclass(frozen=True)
class Draft:
    """A trained network and its description. `release` fills in the tolerance and the files of the manifest."""

    weights: Weights  # in fp32, named as in `swiftlet_models/architectures/traits.py` and `heads.py`
    tokenizer: Tokenizer
    manifest: Manifest
    card: Mapping[str, Any]
    head: Head | None = None  # the parameters behind the network, of a model that reads labels

    def operations(self) -> Operations:
        """Returns the multiply-adds of the network.

        Raises:
            ReleaseError: a parameter is missing, or does not fit the configuration.
        """
        architecture, config, embedding = self.manifest.architecture, self.manifest.config, self.manifest.embedding
        shapes = {name: weight.shape for name, weight in self.weights.items()}
        try:
            check_parameters(configure(architecture, config), shapes, embedding=embedding)
        except ParametersError as error:
            raise ReleaseError(f"The network cannot be served: {error}.") from None
        return Operations.of(architecture, config, shapes, embedding)

    def answers(self, encodings: Sequence[Encoding]) -> Outputs:
        """Returns the outputs of the network in fp32 for each of some sequences, (positions, width).

        Raises:
            ReleaseError: a parameter is NaN or infinite, or missing, or the network cannot be folded.
        """
        for name, weight in self.weights.items():
            if not is_finite(weight):
                raise ReleaseError(f"The network's parameter {name} holds NaN or infinity. {DAMAGED}")
        try:
            folded = fold(self.manifest.architecture, self.manifest.config, self.weights, 1, self.manifest.embedding)
        except (FoldingError, ParametersError) as error:
            raise ReleaseError(f"The network cannot be served: {error}.") from None
        return run(RaggedOnnx(folded, in_fp32, threads=usable_cores()), encodings)


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
    strict: bool = True,
    advice: str = "Train it longer or with other settings.",
    source: Callable[[], Mapping[str, Any]] | None = None,
    confirm: Callable[[], None] = lambda: None,
    report: Report = lambda _: None,
    progress: Progress | None = None,
) -> Artifact:
    """Writes an artifact to `directory`. Replaces an artifact there, and nothing else.

    The manifest has the precision to begin with. The engine that serves a rounded network on this machine decides
    whether it is good enough (`int8_gate`): the native engine, or ONNX Runtime if that cannot run. The card records the
    scores of both. Without a `measure`, the built-in texts decide. The artifact is also measured on the files in
    `also`, which decide nothing. A certificate tells what was compared.

    Args:
        weaknesses: known errors. The card records those that the model makes.
        max_loss: points of the main score that rounding may lose.
        keep_fp32: add the fp32 weights, for the torch engine.
        strict: whether to write nothing if the precision is refused. False: the next of int8, bf16 and fp32, and the
            card has the reason.
        advice: what to do if int8 or bf16 is refused, as a sentence.
        source: returns the origin for the certificate, with the hashes of its files. Default: that of the manifest.
        confirm: called before the artifact takes its place. It may raise.

    Raises:
        ReleaseError: rounding loses too much, or the network's weights or answers are not finite.
        SetupError: `directory` exists and is no artifact, the tokenizer does not fit the task, or `max_loss` is no
            number from 0.
    """
    if directory.exists() and not (directory / MANIFEST).is_file():
        raise SetupError(f"{directory} exists and is not an artifact. Remove it, or choose another directory.")
    if not max_loss >= 0:  # also true if it is NaN
        raise SetupError(f"The loss that is allowed must be 0 points or more, not {max_loss}. Set --max-loss.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=directory.parent) as temporary:
        probe = Probe.golden(draft.tokenizer, draft.manifest, draft.head)
        golden_count = len(probe.encodings)
        if draft.manifest.precision != "fp32":
            probe = probe.with_built_in_texts(draft.tokenizer, draft.manifest, draft.operations())
        exact_rows = draft.answers(probe.encodings)
        if not all(np.isfinite(rows).all() for rows in exact_rows):
            raise ReleaseError(f"The network answers built-in texts with NaN or infinity. {DAMAGED}")
        exact = stage = _Stage(
            draft=draft,
            probe=probe,
            exact=exact_rows,
            golden=golden_count,
            path=Path(temporary, "fp32"),
            manifest=replace(draft.manifest, precision="fp32", tolerance=FP32_TOLERANCE),
            measure=measure,
            report=report,
            progress=progress,
            card=dict(draft.card) | {"scores": {}},
        )
        fp32 = None
        if measure or also or draft.manifest.precision == "fp32":
            exact.write()
            fp32 = exact.record_scores()
        for precision in LADDER[LADDER.index(draft.manifest.precision) :]:
            if precision == "fp32":
                stage = exact
                stage.comparisons.clear()
                if measure and fp32:
                    stage.comparisons.append(Comparison.of_labels(measure.data, fp32, "fp32", None))
                if not stage.path.exists():
                    stage.write()
                    stage.record_scores()
                elif draft.manifest.precision != "fp32":  # the card has those of the precision that was refused
                    stage.record_latency(stage.host("onnx_cpu"))
                break
            report(f"rounding to {precision}")
            manifest = replace(exact.manifest, precision=precision)
            stage = replace(exact, path=Path(temporary, precision), manifest=manifest)
            stage, refusal = stage.round(fp32, max_loss)
            if not refusal:
                break
            if strict:
                raise ReleaseError(f"{precision} {refusal}, so the artifact is not written. {advice}")
            report(f"{precision} {refusal}")
            stage.refuse(f"{precision} {refusal}")
        if stage is not exact:
            for data in also:
                result = exact.evaluate(exact.load(), Measure(data))
                stage.record_also(data, {"fp32": summary(result)["scores"]})
                if stage.runs_native:
                    result = stage.evaluate(stage.load("native"), Measure(data), "native")
                    stage.record_also(data, {"native": summary(result)["scores"]})
        for data in also:
            stage.record_also(data, summary(stage.evaluate(stage.load(), Measure(data))))
        if weaknesses:
            stage.record_weaknesses(weaknesses)
        if keep_fp32:
            save_weights(stage.path / SAFETENSORS, draft.weights, "fp32")
        sealed = artifacts.seal(stage.path, stage.manifest, stage.card)
        stage.certify(sealed, source() if source else draft.manifest.source)
        confirm()
        if directory.exists():
            directory.rename(Path(temporary, "replaced"))
        stage.path.rename(directory)
    return replace(sealed, path=directory)


def golden(encodings: Sequence[Encoding], rows: Outputs) -> dict[str, NDArray[Any]]:
    """Returns the arrays of `golden.npz`: sequences end to end, and the network's outputs for each of them alone."""
    outputs, batch = np.concatenate(rows), Batch.of(encodings)
    columns = np.unique(np.linspace(0, outputs.shape[1] - 1, GOLDEN_COLUMNS).astype(np.int64))
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "offsets": batch.offsets,
        "focus": batch.focus,
        "focus_offsets": batch.focus_offsets,
        "columns": columns,
        "rows": outputs[:, columns].astype(np.float32),
    }


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


def golden_encodings(tokenizer: Tokenizer, manifest: Manifest) -> list[Encoding]:
    """Encodes the requests that an artifact's golden answers record.

    Raises:
        SetupError: the tokenizer or the manifest does not fit the task.
    """
    return Probe.golden(tokenizer, manifest).encodings


@dataclass(frozen=True)
class _Stage:
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
        save_weights(self.path / WEIGHTS, self.draft.weights, self.manifest.precision)
        if self.draft.head is not None:
            save_weights(self.path / HEAD, self.draft.head, "fp32")
        answers: dict[str, Any] = golden(self.probe.encodings[: self.golden], self.exact[: self.golden])
        np.savez_compressed(self.path / GOLDEN, **answers)
        (self.path / CARD).write_text("{}\n", "utf-8")

    def host(self, engine: str) -> Engine:
        """Loads the network alone into an engine, which replays its golden answers. The caller closes it."""
        hosted, _ = host_model([self.unverified()], engine)
        return hosted.engine

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

    def round(self, fp32: Evaluation | None, max_loss: float) -> tuple[_Stage, str]:
        """Writes the weights in the stage's precision, and compares their answers with those of fp32.

        Returns the stage with its tolerance, and why the precision is refused: a clause, or an empty text.
        """
        precision = self.manifest.precision
        try:
            self.write()
        except WeightsError:
            return self, "cannot hold a weight, which is too large"
        _check_rounding(self.path / WEIGHTS, self.draft.weights, precision)
        if precision == "int8":
            self.record_ranges()
        try:
            stage = replace(self, manifest=replace(self.manifest, tolerance=self.tolerance()))
        except ArtifactError as error:
            return self, f"fails ({str(error).removesuffix('.')})"
        rounded = stage.record_scores()
        if fp32 is not None and rounded is not None:
            self.card[precision] = _compare(fp32, rounded)
        else:
            self.card[precision] = "compared with fp32 on built-in texts only"
        kept = stage.record_fidelity(stage.host_serving())
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
        stage = replace(self, manifest=replace(self.manifest, tolerance=sys.float_info.max))
        hosted, deviation = host_model([stage.unverified()], "onnx_cpu")
        self.record_latency(hosted.engine)
        return max(SLACK * (deviation or 0.0), FP32_TOLERANCE)

    def record_latency(self, engine: Engine) -> None:
        """Records the latency and the size of the weights, and closes the engine."""
        self.card["latency"] = measure_latency(engine)
        self.card["bytes"] = (self.path / WEIGHTS).stat().st_size
        engine.close()

    def record_scores(self) -> Evaluation | None:
        """Records the scores and returns the evaluation, if there is a data file."""
        if self.manifest.precision == "fp32":
            self.record_latency(self.host("onnx_cpu"))
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

    def host_serving(self) -> Engine:
        """Returns the engine that serves the network here, and records the latency of the native one if it can run."""
        try:
            engine = self.host("native")
        except ArtifactError as error:
            self.report(f"the native engine rejects the artifact, so serve it with onnx_cpu: {error}")
            self.card["native"] = {"refused": str(error)}
            return self.host("onnx_cpu")
        if isinstance(engine, Native):  # it did not fall back to another engine
            self.card["native"] = {"engine": engine.title, "latency": measure_latency(engine)}
        return engine

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

    def record_weaknesses(self, weaknesses: Sequence[Weakness]) -> None:
        """Records the known errors that the model makes."""
        self.card["weaknesses"] = find_errors(self.load(), weaknesses, self.report)


def find_errors(model: LoadedModel, weaknesses: Sequence[Weakness], report: Report) -> list[dict[str, Any]]:
    """Returns the known errors that a model makes, as recorded in its card, and closes the model."""
    if model.task_name == "embed":
        answers = find_nearest(model, [(weakness.inputs, weakness.texts) for weakness in weaknesses])
    else:
        answers = ask(model, [weakness.inputs for weakness in weaknesses])
    errors = []
    for weakness, answer in zip(weaknesses, answers, strict=True):
        if answer == weakness.right:
            report(f"answers correctly, so this weakness is not recorded: {weakness.about}")
        else:
            known = asdict(weakness)
            if not weakness.texts:
                del known["texts"]
            errors.append(known | {"answer": answer})
    return errors


def _compare(fp32: Evaluation, rounded: Evaluation) -> dict[str, Any]:
    """Returns the loss of rounding in points, its interval and the agreement with fp32, as recorded in the card."""
    loss = loss_of(fp32, rounded)
    return {"loss": loss.value, "low": loss.low, "high": loss.high, "agreement": asdict(agreement(fp32, rounded))}


def measure_latency(engine: Engine, tokens: int = 32, calls: int = 10) -> dict[str, Any]:
    """Measures the median latency of one sequence, in milliseconds, and names the processor."""
    ids = np.full(tokens, 5, np.int64)
    batch = Batch.of([Encoding(ids, np.zeros_like(ids), np.zeros(1, np.int64))])
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        engine.run(batch)
        times.append(time.perf_counter() - started)
    return {"tokens": tokens, "milliseconds": round(1000 * float(np.median(times)), 3), "machine": processor()}
