"""Draws the curves of runs, one beside the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from models.errors import ModelError
from models.training.curve import NAME, read_curve


class PlotError(ModelError):
    """There is nothing to draw; the message is one sentence."""


def plot(runs: Sequence[Path], out: Path) -> None:
    """Writes a PNG with a panel for each loss, in which each run that has this loss has a curve with its name.

    runs are directories of runs, or their CSV files.

    Raises:
        PlotError: one of them holds no losses.
    """
    curves = {}
    for run in runs:
        curves[str(run)] = read_curve(run / NAME if run.is_dir() else run)
        if not curves[str(run)]:
            raise PlotError(f"{run} holds no losses to draw.")
    names = list(dict.fromkeys(name for points in curves.values() for point in points for name in point.losses))
    figure = Figure(figsize=(6 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for label, points in curves.items():
            having = [point for point in points if name in point.losses]
            if having:
                axes.plot([point.step for point in having], [point.losses[name] for point in having], label=label)
        axes.set(title=name, xlabel="step", ylabel="loss")
        axes.legend()
    figure.savefig(out, dpi=150, format="png")
