"""From a torch model to an artifact: exported, quantised, each step held against the one before, measured, then kept.

An artifact that loses more than it may is not written.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from swiftlet_serve.service.offline.evaluate import Evaluation, Progress, agreement, ask, evaluate
from swiftlet_serve.service.types import Batch
from swiftlet_serve.service.workers.golden import replay

if TYPE_CHECKING:
    import onnx

    from swiftlet_serve.models.heads import Model as Network
    from swiftlet_serve.models.training.recipe import Weakness

FP32_TOLERANCE: Final = 1e-3  # between torch and ONNX Runtime, of logits of a size around 10
MAX_LOSS: Final = 0.5  # points that int8 may lose on the data set
MAX_DEVIATION: Final = 0.1  # of int8 from fp32 on the golden inputs, relative: what holds where there is no data set
SLACK: Final = 2.0  # golden answers may be off by this many times what they are off here: other CPUs round elsewhere


class ReleaseError(SetupError):
    """The artifact is not good enough to be kept; the message is one sentence."""


@dataclass(frozen=True)
class Draft:
    """A trained network and what is said of it. The manifest's tolerance and files are filled in by `release`."""

    network: Network
    tokenizer: Tokenizer
    manifest: Manifest
    card: Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """What a release is measured on: a data file, or a part of one."""

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
    report: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
) -> Artifact:
    """Writes the artifact `directory`, in place of an artifact that may be there, and of nothing else.

    The manifest says whether it is to be int8; then ONNX Runtime decides whether it is good enough, and what it reaches
    in the native engine, where this machine has that, is told beside. `keep_fp32` adds the fp32 weights, for the torch
    engine. Without a `measure`, int8 is held against fp32 on the golden inputs only, and the card says so. On the files
    `also` the artifact is measured too, as it is served: what comes out decides nothing. Of the `weaknesses`, those
    that show go into the card.

    Raises:
        ReleaseError: int8 lost more than it may.
        ArtifactError: ONNX Runtime does not compute what torch computes.
        SetupError: what is there is no artifact, or the tokenizer is not one for this task.
    """
    from swiftlet_serve.models.graphs.export import export, golden
    from swiftlet_serve.models.graphs.quantize import quantize

    if directory.exists() and not (directory / MANIFEST).is_file():
        raise SetupError(f"{directory} is there and is no artifact, so nothing is written in its place.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=directory.parent) as temporary:
        report("exporting to ONNX")
        graph = export(draft.network)
        answers = golden(draft.network, golden_encodings(draft.tokenizer, draft.manifest))
        stage = Path(temporary, "fp32")
        manifest = replace(draft.manifest, precision="fp32", tolerance=FP32_TOLERANCE)
        _write(stage, draft, graph, answers)
        card = dict(draft.card) | {"scores": {}}
        reached = _measure(stage, manifest, measure, card, report, progress)
        if draft.manifest.precision == "int8":
            report("quantising to int8")
            stage = Path(temporary, "int8")
            _write(stage, draft, quantize(graph), answers)
            limit = MAX_DEVIATION if measure is None else np.inf  # where there are data, the scores decide
            tolerance = _tolerance(stage, manifest, answers["rows"], limit)
            manifest = replace(manifest, precision="int8", tolerance=tolerance)
            lowered = _measure(stage, manifest, measure, card, report, progress)
            card |= _compare(reached, lowered, max_loss)
            card |= _measure_native(stage, manifest, measure, reached, report, progress)
        if also:
            card["also"] = {data.name: _measure_also(stage, manifest, data, report, progress) for data in also}
        if weaknesses:
            card["weaknesses"] = _show(_load(stage, manifest), weaknesses, report)
        if keep_fp32:
            _write_weights(stage, draft.network)
        _write_card(stage, card)
        artifacts.seal(stage, manifest)
        if directory.exists():
            directory.rename(Path(temporary, "replaced"))
        stage.rename(directory)
    return artifacts.open_artifact(directory)


def golden_encodings(tokenizer: Tokenizer, manifest: Manifest) -> list[Encoding]:
    """Encodes the requests that an artifact's golden answers record.

    Raises:
        SetupError: the tokenizer or the manifest does not fit the task.
    """
    definition = tasks.load(manifest.task)
    try:
        task = definition.create(tokenizer, manifest)
        requests = [task.Request.model_validate({"inputs": one}) for one in definition.golden_inputs(tokenizer)]
        return [encoding for request in requests for encoding in task.encode(request)]
    except (SwiftletError, ValueError) as error:
        raise SetupError(f"No golden answers can be made: {error}") from None


def _write(stage: Path, draft: Draft, graph: onnx.ModelProto, answers: Mapping[str, Any]) -> None:
    """Everything but the manifest; the card is a blank one."""
    stage.mkdir()
    draft.tokenizer.save(stage / TOKENIZER)
    (stage / ONNX).write_bytes(graph.SerializeToString(deterministic=True))
    np.savez_compressed(stage / GOLDEN, **answers)
    _write_card(stage, {})


def _write_weights(stage: Path, network: Network) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, stage / SAFETENSORS)


def _write_card(stage: Path, card: Mapping[str, Any]) -> None:
    (stage / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _load(stage: Path, manifest: Manifest, engine: str = "onnx_cpu") -> LoadedModel:
    artifacts.seal(stage, manifest)
    return load_model(stage, engine)


def _tolerance(stage: Path, manifest: Manifest, answers: Any, limit: float) -> float:
    """What an int8 artifact's golden answers may be off by, which are off by `limit` of the largest at most.

    Raises:
        ReleaseError: they are off by so much that int8 is no longer the same network.
    """
    artifact = artifacts.seal(stage, replace(manifest, precision="int8", tolerance=1e9))
    model = load_model(stage, "onnx_cpu")
    deviation = replay(artifact, model.engine)
    model.engine.close()
    if deviation > limit * np.abs(answers).max():
        raise ReleaseError(
            f"int8 answers differ from fp32 ones by up to {deviation:.3g}, so the artifact is not written."
        )
    return max(SLACK * deviation, FP32_TOLERANCE)


def _measure(
    stage: Path,
    manifest: Manifest,
    measure: Measure | None,
    card: dict[str, Any],
    report: Callable[[str], None],
    progress: Progress | None,
) -> Evaluation | None:
    """Loads the stage, which replays its golden answers; notes its speed, and its scores where there is data."""
    model = _load(stage, manifest)
    card["latency"] = _latency(model)
    card["bytes"] = model.artifact.manifest.files[ONNX].size
    if measure is None:
        model.engine.close()
        return None
    evaluation = _evaluate(model, manifest.precision, measure, report, progress)
    card["data"] = {"file": measure.data.name, "skip": measure.skip, "limit": measure.limit}
    told = _tell(evaluation)
    card["scores"] |= {manifest.precision: told["scores"], "trivial": told["trivial"]}
    if "upper_bounds" in told:
        card.setdefault("upper_bounds", {})[manifest.precision] = told["upper_bounds"]
    return evaluation


def _measure_native(
    stage: Path,
    manifest: Manifest,
    measure: Measure | None,
    reached: Evaluation | None,
    report: Callable[[str], None],
    progress: Progress | None,
) -> dict[str, Any]:
    """What the native engine makes of the same file, for it rounds in its own way; nothing where it does not run."""
    try:
        model = _load(stage, manifest, "native")
    except ArtifactError as error:
        report(f"the native engine refuses it, so that onnx_cpu has to serve it: {error}")
        return {"native": {"refused": str(error)}}
    if not isinstance(model.engine, Native):  # it fell back
        model.engine.close()
        return {}
    told: dict[str, Any] = {"engine": model.engine.title, "latency": _latency(model)}
    if measure is None or reached is None:
        model.engine.close()
        return {"native": told}
    own = _evaluate(model, model.engine.title, measure, report, progress)
    told |= {"scores": _tell(own)["scores"], "loss": reached.main.value - own.main.value}
    return {"native": told | {"agreement": asdict(agreement(reached, own))}}


def _measure_also(
    stage: Path, manifest: Manifest, data: Path, report: Callable[[str], None], progress: Progress | None
) -> dict[str, Any]:
    return _tell(_evaluate(_load(stage, manifest), manifest.precision, Measure(data), report, progress))


def _evaluate(
    model: LoadedModel, called: str, measure: Measure, report: Callable[[str], None], progress: Progress | None
) -> Evaluation:
    """Measures a model, whose engine is closed then; says that before, since it takes long."""
    report(f"measuring {called} on {measure.data.name}")
    return evaluate(model, measure.data, limit=measure.limit, skip=measure.skip, progress=progress)


def _tell(evaluation: Evaluation) -> dict[str, Any]:
    """What a card says of an evaluation. JSON knows no infinity: a threshold of never to answer is none."""
    told: dict[str, Any] = {
        "scores": {name: asdict(score) for name, score in evaluation.scores.items()},
        "trivial": {name: asdict(score) for name, score in evaluation.trivial.items()},
    }
    bounds = {
        name: {"score": bound.score, "threshold": None if math.isinf(bound.value) else bound.value}
        for name, bound in evaluation.upper_bounds.items()
    }
    return told | ({"upper_bounds": bounds} if bounds else {})


def _show(model: LoadedModel, weaknesses: Sequence[Weakness], report: Callable[[str], None]) -> list[dict[str, Any]]:
    """What the model answers where it is known to go wrong, if it does."""
    shown = []
    for weakness, answer in zip(weaknesses, ask(model, [one.inputs for one in weaknesses]), strict=True):
        if answer == weakness.right:
            report(f"is right, and so not weak there: {weakness.about}")
        else:
            shown.append(asdict(weakness) | {"answer": answer})
    return shown


def _compare(reached: Evaluation | None, lowered: Evaluation | None, max_loss: float) -> dict[str, Any]:
    """What int8 cost.

    Raises:
        ReleaseError: more than it may.
    """
    if reached is None or lowered is None:
        return {"int8": "held against fp32 on the golden inputs only"}
    loss = reached.main.value - lowered.main.value
    if not loss <= max_loss:  # so that nothing is allowed by what is no number
        raise ReleaseError(f"int8 loses {loss:.2f} points, and {max_loss} are allowed, so the artifact is not written.")
    return {"int8": {"loss": loss, "agreement": asdict(agreement(reached, lowered))}}


def _latency(model: LoadedModel, tokens: int = 32, calls: int = 30) -> dict[str, Any]:
    """Milliseconds for one row on one core, and which core."""
    ids = np.full(tokens, 5, np.int64)
    encoding = Encoding(ids, np.zeros_like(ids), np.zeros(1, np.int64))
    batch = Batch.of([encoding])
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        model.engine.run(batch)
        times.append(time.perf_counter() - started)
    return {"tokens": tokens, "milliseconds": round(1000 * float(np.median(times)), 3), "machine": processor()}
