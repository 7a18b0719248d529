"""A study is conducted: each variant is pre-trained, and what came out stands in a table and a plot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import models.training
from models.training.curve import NAME, read_curve
from models.training.plot import plot
from models.training.recipe import RecipeError
from models.training.study import HELD_OUT, Study, held_out, read_study, table
from service.errors import SetupError
from service.evaluate import Progress
from service.train import train_body

STUDIES: Final = Path(models.training.__file__).parent / "studies"


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
    study = _find(study_name)
    for name, recipe in study.variants.items():
        for file in recipe.pretraining.corpora:
            if not (data / file).is_file():
                raise SetupError(f"This study needs the file {file}, which is not in {data}.")
        train_body(recipe, data, runs / study.name, partial(_say, report, name), progress, device)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{study.name}.png"
    ends = {name: runs / study.name / name for name in study.variants}
    losses = {loss for run in ends.values() for loss in held_out(read_curve(run / NAME))}
    plot(ends, path, "flops", [f"{HELD_OUT}{loss}" for loss in sorted(losses)])
    return table(study, runs / study.name), path


def _say(report: Callable[[str], None], name: str, text: str) -> None:
    report(f"{name}: {text}")


def _find(name: str) -> Study:
    """A study's file, or one that comes with the package."""
    shipped = {path.stem: path for path in STUDIES.glob("*.toml")}
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise SetupError(f"There is no study {name!r}: it is no file, and the shipped ones are {', '.join(shipped)}.")
    try:
        return read_study(path)
    except RecipeError as error:
        raise SetupError(f"{path.name}: {error}") from None
