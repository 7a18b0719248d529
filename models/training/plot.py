"""Draws the curves of runs, one beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

from swiftlet_serve.models.errors import ModelError
from swiftlet_serve.models.training.curve import NAME, read_curve

Against = Literal["step", "seconds", "flops"]  # as points of a curve call them


class PlotError(ModelError):
    """There is nothing to draw; the message is one sentence."""


def plot(runs: Mapping[str, Path], out: Path, against: Against = "step", losses: Sequence[str] = ()) -> None:
    """Writes a PNG with a panel for each loss, in which each run that has this loss has a curve with its name.

    runs are directories of runs, or their CSV files, by the name that is drawn; no `losses` means all.

    Raises:
        PlotError: one of them holds no losses, or none holds one of those that are asked for.
    """
    curves = {label: read_curve(run / NAME if run.is_dir() else run) for label, run in runs.items()}
    for label, points in curves.items():
        if not points:
            raise PlotError(f"{label} holds no losses to draw.")
    found = list(dict.fromkeys(name for points in curves.values() for point in points for name in point.losses))
    names = losses or found
    for name in set(names) - set(found):
        raise PlotError(f"no run has a loss {name!r}: there are {', '.join(found)}.")
    figure = Figure(figsize=(6 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for label, points in curves.items():
            having = [point for point in points if name in point.losses]
            if having:
                x = [getattr(point, against) for point in having]
                axes.plot(x, [point.losses[name] for point in having], label=label, marker="." if len(x) < 30 else "")
        axes.set(title=name, xlabel=against, ylabel="loss")
        axes.legend()
    figure.savefig(out, dpi=150, format="png")
