"""Turns a torch model into an artifact: export, quantisation, checks and measurements.

Each step is compared with the one before. An artifact that loses too much accuracy is not written.
"""

from __future__ import annotations

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
    MANIFEST,
    ONNX,
    SAFETENSORS,
    TOKENIZER,
    Artifact,
    ArtifactError,
    Manifest,
    Precision,
)
from swiftlet_models.folding import Matrix
from swiftlet_models.graphs.reader import WeightsError, open_weights
from swiftlet_models.tokenizer import Encoding, Tokenizer
from swiftlet_serve import evaluation, tasks
from swiftlet_serve.engines.native import Native
from swiftlet_serve.errors import SetupError, SwiftletError
from swiftlet_serve.inference.loading import LoadedModel, load_model
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
from swiftlet_serve.offline.fidelity import Fidelity, Outputs, fidelity
from swiftlet_serve.offline.int8_gate import judge, loss_of
from swiftlet_serve.types import Batch

if TYPE_CHECKING:
    import onnx

    from swiftlet_models.heads import Model as Network
    from swiftlet_models.weakness import Weakness

Report = Callable[[str], None]

FP32_TOLERANCE: Final = 1e-3  # between torch and ONNX Runtime, for logits around 10
MAX_ROUNDING: Final = 0.05  # of a matrix, relative: in a block of 128, half a step is at most √128 / 254 of the block
MAX_LOSS: Final = 0.5  # points that int8 or bf16 may lose on a data file
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
    advice: str = "Train it longer or with other settings.",
    report: Report = lambda _: None,
    progress: Progress | None = None,
) -> Artifact:
    """Writes an artifact to `directory`. Replaces an artifact there, and nothing else.

    The manifest decides between fp32, bf16 and int8. The engine that serves a rounded network on this machine decides
    whether it is good enough (`int8_gate`): the native engine, or ONNX Runtime if that cannot run. The card records the
    scores of both.
    Without a `measure`, the built-in texts decide. The artifact is also measured on the files in `also`, which decide
    nothing.

    Args:
        weaknesses: known errors. The card records those that the model makes.
        max_loss: points of the main score that rounding may lose.
        keep_fp32: add the fp32 weights, for the torch engine.
        advice: what to do if int8 or bf16 is refused, as a sentence.

    Raises:
        ReleaseError: rounding loses too much, or the network's weights or answers are not finite.
        ArtifactError: ONNX Runtime's outputs differ from torch's.
        SetupError: `directory` exists and is no artifact, the tokenizer does not fit the task, or `max_loss` is no
            number from 0.
    """
    from swiftlet_models.graphs.export import answer, export, golden
    from swiftlet_models.graphs.quantize import quantize, to_bf16

    if directory.exists() and not (directory / MANIFEST).is_file():
        raise SetupError(f"{directory} exists and is not an artifact. Remove it, or choose another directory.")
    if not max_loss >= 0:  # also true if it is NaN
        raise SetupError(f"The loss that is allowed must be 0 points or more, not {max_loss}. Set --max-loss.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=directory.parent) as temporary:
        _check_weights(draft.network)
        report("exporting to ONNX")
        graph = export(draft.network)
        encodings = golden_encodings(draft.tokenizer, draft.manifest)
        answers = golden(draft.network, encodings)
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
        precision = draft.manifest.precision
        if precision != "fp32":
            report(f"rounding to {precision}")
            exact, stage = stage, replace(stage, path=Path(temporary, precision))
            try:
                rounded_graph = quantize(graph) if precision == "int8" else to_bf16(graph)
            except ValueError:
                raise ReleaseError(f"A weight is too large for {precision}. {advice}") from None
            stage.write(draft.tokenizer, rounded_graph, answers)
            _check_rounding(stage.path / ONNX, draft.network, precision)
            stage = replace(stage, manifest=replace(stage.manifest, precision=precision))
            try:
                tolerance = stage.rounded_tolerance()
            except ArtifactError as error:
                raise ReleaseError(f"The {precision} network fails: {error} {advice}") from None
            stage = replace(stage, manifest=replace(stage.manifest, tolerance=tolerance))
            rounded = stage.record_scores()
            if fp32 is not None and rounded is not None:
                stage.card[precision] = _compare(fp32, rounded)
            else:
                stage.card[precision] = "compared with fp32 on the golden inputs only"
            served = stage.record_native(fp32) or rounded
            kept = stage.record_fidelity(encodings, [answer(draft.network, encoding) for encoding in encodings])
            verdict = judge(fp32, served, kept, max_loss)
            if verdict.refusal:
                raise ReleaseError(f"{precision} {verdict.refusal}, so the artifact is not written. {advice}")
            if verdict.warning:
                report(f"warning: {precision} {verdict.warning}")
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


def _check_rounding(model: Path, network: Network, precision: Precision) -> None:
    """Raises ReleaseError if a stored matrix differs from the network's by more than rounding can."""
    with open_weights(model) as stored:
        for name, tensor in network.state_dict().items():
            if name in stored and not _is_rounded(stored[name], tensor.numpy()):
                raise ReleaseError(
                    f"{precision} changes the parameter {name} by more than rounding. Please report this."
                )


def _is_rounded(stored: Matrix, weight: NDArray[np.float32]) -> bool:
    try:
        difference = np.linalg.norm(np.asarray(stored) - weight)
    except WeightsError:  # it is not finite
        return False
    return bool(difference <= MAX_ROUNDING * np.linalg.norm(weight))


def golden_encodings(tokenizer: Tokenizer, manifest: Manifest) -> list[Encoding]:
    """Encodes the requests that an artifact's golden answers record.

    Raises:
        SetupError: the tokenizer or the manifest does not fit the task.
    """
    definition = tasks.load(manifest.task)
    try:
        task = definition.create(tokenizer, manifest)
        bodies = evaluation.create(manifest.task, task).golden_bodies()
        requests = [task.Request.model_validate(body) for body in bodies]
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

    def rounded_tolerance(self) -> float:
        """Returns the tolerance of the golden answers of a rounded network, from their deviation in ONNX Runtime.

        Raises:
            ArtifactError: an answer is not finite.
        """
        model = replace(self, manifest=replace(self.manifest, tolerance=sys.float_info.max)).load()
        model.engine.close()
        return max(SLACK * (model.deviation or 0.0), FP32_TOLERANCE)

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
        results = summary(evaluation)
        self.card["scores"] |= {self.manifest.precision: results["scores"], "trivial": results["trivial"]}
        if "upper_bounds" in results:
            self.card.setdefault("upper_bounds", {})[self.manifest.precision] = results["upper_bounds"]
        return evaluation

    def record_also(self, data: Path, results: Mapping[str, Any]) -> None:
        """Adds results on a further file to those that the card has."""
        also = self.card.setdefault("also", {})
        also[data.name] = {**also.get(data.name, {}), **results}

    def record_native(self, fp32: Evaluation | None) -> Evaluation | None:
        """Records and returns the results of the native engine, which rounds differently; None if it cannot run."""
        try:
            model = self.load("native")
        except ArtifactError as error:
            self.report(f"the native engine rejects the artifact, so serve it with onnx_cpu: {error}")
            self.card["native"] = {"refused": str(error)}
            return None
        if not isinstance(model.engine, Native):  # it fell back to another engine
            model.engine.close()
            return None
        self.card["native"] = {"engine": model.engine.title, "latency": _latency(model)}
        if self.measure is None or fp32 is None:
            model.engine.close()
            return None
        evaluation = self.evaluate(model, self.measure, model.engine.title)
        self.card["native"] |= {"scores": summary(evaluation)["scores"]} | _compare(fp32, evaluation)
        return evaluation

    def record_fidelity(self, encodings: Sequence[Encoding], exact: Outputs) -> Fidelity:
        """Records and returns the fidelity of the answers to built-in texts, on the engine that serves here."""
        model = self.load("native" if self.runs_native else "onnx_cpu")
        whole = [Encoding(text.input_ids, text.token_type_ids, text.focus) for text in encodings]  # not only the top k
        kept = fidelity(self.manifest, exact, [model.engine.run(Batch.of([text]))[0] for text in whole])
        self.card["fidelity"] = {"engine": model.engine.title, **asdict(kept)}
        model.engine.close()
        return kept

    @property
    def runs_native(self) -> bool:
        """Whether the native engine can run the artifact here. `record_native` finds it out."""
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


def _write_weights(path: Path, network: Network) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path / SAFETENSORS)


def _compare(fp32: Evaluation, rounded: Evaluation) -> dict[str, Any]:
    """Returns the loss of rounding in points, its interval and the agreement with fp32, as recorded in the card."""
    loss = loss_of(fp32, rounded)
    return {"loss": loss.value, "low": loss.low, "high": loss.high, "agreement": asdict(agreement(fp32, rounded))}


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
