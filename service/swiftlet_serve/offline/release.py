"""Turns a network into an artifact: quantisation, checks and measurements.

Each step is compared with the one before. An artifact that loses too much accuracy is not written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from swiftlet_models import artifact as artifacts
from swiftlet_models.artifact import MANIFEST, OF_LABELS, SAFETENSORS, Artifact, Precision
from swiftlet_models.weights import save_weights
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import LoadedModel
from swiftlet_serve.offline.certificate import Comparison
from swiftlet_serve.offline.draft import DAMAGED, Draft, ReleaseError
from swiftlet_serve.offline.evaluate import Measure, Progress, ask, find_nearest, summary
from swiftlet_serve.offline.probe import Probe
from swiftlet_serve.offline.stage import FP32_TOLERANCE, Report, Stage

if TYPE_CHECKING:
    from swiftlet_models.weakness import Weakness

MAX_LOSS: Final = 0.5  # points that int8 or bf16 may lose on a data file

LADDER: Final[Sequence[Precision]] = ("int8", "bf16", "fp32")  # the smallest first


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
        label_tokenizer = draft.of_labels.tokenizer if draft.of_labels else None
        probe = Probe.golden(draft.tokenizer, draft.manifest, draft.head, label_tokenizer)
        golden_count = len(probe.encodings)
        if draft.manifest.precision != "fp32":
            probe = probe.with_built_in_texts(draft.tokenizer, draft.manifest, draft.operations())
        exact_rows = draft.answers(probe.encodings)
        if not all(np.isfinite(rows).all() for rows in exact_rows):
            raise ReleaseError(f"The network answers built-in texts with NaN or infinity. {DAMAGED}")
        exact = stage = Stage(
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
                    stage.record_latency(stage.host("onnx_cpu")[0])
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
            stage.card["weaknesses"] = find_errors(stage.load(), weaknesses, report)
        if keep_fp32:
            for name, (_, weights) in zip(("", OF_LABELS), draft.networks, strict=False):
                save_weights(stage.path / f"{name}{SAFETENSORS}", weights, "fp32")
        sealed = artifacts.seal(stage.path, stage.manifest, stage.card)
        stage.certify(sealed, source() if source else draft.manifest.source)
        confirm()
        if directory.exists():
            directory.rename(Path(temporary, "replaced"))
        stage.path.rename(directory)
    return replace(sealed, path=directory)


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
