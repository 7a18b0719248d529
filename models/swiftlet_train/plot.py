"""Plots the learning curves of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

from swiftlet_models.errors import ModelError
from swiftlet_train.loop.learning_curve import LOSSES_FILE, read_curve

XAxis = Literal["step", "seconds", "flops"]  # attributes of CurvePoint


class PlotError(ModelError):
    """Raised when there is nothing to plot. The message is one sentence."""


def plot(runs: Mapping[str, Path], out: Path, against: XAxis = "step", losses: Sequence[str] = ()) -> None:
    """Writes a PNG with one panel per loss and one curve per run.

    `runs` maps each label to a run's directory or to its CSV file. An empty `losses` plots all losses.

    Raises:
        PlotError: a run has no losses, or no run has one of the losses asked for.
    """
    curves = {label: read_curve(run / LOSSES_FILE if run.is_dir() else run) for label, run in runs.items()}
    for label, points in curves.items():
        if not points:
            raise PlotError(f"{label} has no losses to plot.")
    known = list(dict.fromkeys(name for points in curves.values() for point in points for name in point.losses))
    names = losses or known
    for name in set(names) - set(known):
        raise PlotError(f"no run has a loss {name!r}: the losses are {', '.join(known)}.")
    figure = Figure(figsize=(6 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for label, points in curves.items():
            plotted = [point for point in points if name in point.losses]
            if plotted:
                x = [getattr(point, against) for point in plotted]
                marker = "." if len(x) < 30 else ""
                axes.plot(x, [point.losses[name] for point in plotted], label=label, marker=marker)
        axes.set(title=name, xlabel=against, ylabel="loss")
        axes.legend()
    figure.savefig(out, dpi=150, format="png")
