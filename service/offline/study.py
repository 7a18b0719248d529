"""A study is conducted: each variant is pre-trained, and what came out stands in a table and a plot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import swiftlet_serve.models.training
from swiftlet_serve.models.training.curve import NAME, read_curve
from swiftlet_serve.models.training.plot import plot
from swiftlet_serve.models.training.study import HELD_OUT, held_out, read_study, table
from swiftlet_serve.service.offline.evaluate import Progress
from swiftlet_serve.service.offline.train import check_files, find, say_of, train_body

STUDIES: Final = Path(swiftlet_serve.models.training.__file__).parent / "studies"


def conduct(
    study_name: str,
    data: Path,
    runs: Path,
    out: Path,
    report: Callable[[str], None],
    progress: Progress | None = None,
    device: str = "cpu",
) -> tuple[str, Path]:
    """Pre-trains the variants of a study, and returns the table of what came out, and the plot drawn under `out`.

    Their runs lie under `runs`; those that have ended are not repeated.

    Raises:
        DeviceError: there is no such device.
        SetupError: there is no such study, or a file it needs is not there.
    """
    study = find("study", study_name, STUDIES, read_study)
    check_files("study", {file for recipe in study.variants.values() for file in recipe.pretraining.corpora}, data)
    for name, recipe in study.variants.items():
        train_body(recipe, data, runs / study.name, partial(say_of, report, name), progress, device)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{study.name}.png"
    ends = {name: runs / study.name / name for name in study.variants}
    losses = {loss for run in ends.values() for loss in held_out(read_curve(run / NAME))}
    plot(ends, path, "flops", [f"{HELD_OUT}{loss}" for loss in sorted(losses)])
    return table(study, runs / study.name), path
