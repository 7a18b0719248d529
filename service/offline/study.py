"""Runs a study: pre-trains each variant, and compares them in a table and a plot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import swiftlet_serve.models.training
from swiftlet_serve.models.training.learning_curve import LOSSES_FILE, read_curve
from swiftlet_serve.models.training.plot import plot
from swiftlet_serve.models.training.study import HELD_OUT, format_table, held_out_losses, read_study
from swiftlet_serve.service.offline.evaluate import Progress
from swiftlet_serve.service.offline.train import check_files, pretrain_recipe, read_named, report_with_prefix

STUDIES: Final = Path(swiftlet_serve.models.training.__file__).parent / "studies"


def run_study(
    study_name: str,
    data: Path,
    runs: Path,
    out: Path,
    report: Callable[[str], None],
    progress: Progress | None = None,
    device: str = "cpu",
) -> tuple[str, Path]:
    """Pre-trains the variants of a study. Returns the table of results and the path of the plot under `out`.

    The variants' runs are kept under `runs`. Completed runs are not repeated.

    Raises:
        DeviceError: the device is not available.
        SetupError: the study or a data file is missing, or the study is invalid.
    """
    study = read_named("study", study_name, STUDIES, read_study)
    check_files("study", {file for recipe in study.variants.values() for file in recipe.pretraining.corpora}, data)
    for name, recipe in study.variants.items():
        report_variant = partial(report_with_prefix, report, name)
        pretrain_recipe(recipe, data, runs / study.name, report_variant, progress, device)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{study.name}.png"
    directories = {name: runs / study.name / name for name in study.variants}
    losses = {loss for run in directories.values() for loss in held_out_losses(read_curve(run / LOSSES_FILE))}
    plot(directories, path, "flops", [f"{HELD_OUT}{loss}" for loss in sorted(losses)])
    return format_table(study, runs / study.name), path
