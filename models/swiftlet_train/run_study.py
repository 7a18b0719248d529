"""Runs a study: pre-trains each variant, and compares them in a table and a plot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from swiftlet_serve.offline.evaluate import Progress
from swiftlet_train.downstream import format_scores, plot_scores, score_checkpoints
from swiftlet_train.loop.learning_curve import LOSSES_FILE, read_curve
from swiftlet_train.loop.trainer import find_device
from swiftlet_train.plot import plot
from swiftlet_train.pretraining.corpus import copy_vocabulary
from swiftlet_train.run_recipe import (
    check_files,
    data_files,
    pretrain_recipe,
    read_named,
    report_with_prefix,
)
from swiftlet_train.study import HELD_OUT, format_table, held_out_losses, read_study

STUDIES: Final = Path(__file__).parent / "studies"


def run_study(
    study_name: str,
    data: Path,
    runs: Path,
    out: Path,
    report: Callable[[str], None],
    progress: Progress | None = None,
    device: str = "cpu",
) -> tuple[str, Path]:
    """Runs the variants of a study. Returns the table of results and the path of the plot under `out`.

    A study with a table `downstream` also fine-tunes checkpoints of each variant. The runs are kept under `runs`.
    Completed runs are not repeated.

    Raises:
        DeviceError: the device is not available.
        SetupError: the study or a data file is missing, or the study is invalid.
    """
    study = read_named("study", study_name, STUDIES, read_study)
    needed = {file for variant in study.variants.values() for file in data_files(variant, tuple(variant.finetuning))}
    check_files("study", needed, data)
    for name, recipe in study.variants.items():
        report_variant = partial(report_with_prefix, report, name)
        for variant in study.variants:
            if study.variants[variant].has_same_vocabulary(recipe):
                copy_vocabulary(runs / study.name / variant, runs / study.name / name)
        snapshots = () if study.downstream is None else study.downstream.steps(recipe)
        pretrain_recipe(recipe, data, runs / study.name, report_variant, progress, device, snapshots=snapshots)
    out.mkdir(parents=True, exist_ok=True)
    directories = {name: runs / study.name / name for name in study.variants}
    if study.downstream is not None:
        scores = score_checkpoints(study, study.downstream, data, runs / study.name, report, find_device(device))
        drawing = out / f"{study.name}.svg"
        plot_scores(scores, {name: read_curve(run / LOSSES_FILE) for name, run in directories.items()}, drawing)
        return format_scores(scores), drawing
    path = out / f"{study.name}.png"
    losses = {loss for run in directories.values() for loss in held_out_losses(read_curve(run / LOSSES_FILE)[-1])}
    plot(directories, path, "flops", [f"{HELD_OUT}{loss}" for loss in sorted(losses)])
    return format_table(study, runs / study.name), path
