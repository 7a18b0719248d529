"""Reliability diagrams: the share of right answers over the confidence, before a calibration and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from swiftlet_models.calibration import Bin
from swiftlet_serve.offline import pictures
from swiftlet_serve.offline.calibrate import Calibration


def draw(calibration: Calibration, out: Path) -> None:
    """Writes an SVG with a panel for each type of question, or one for the answers.

    The area of a point is the share of the answers in its interval. On the diagonal, confidence is accuracy.
    """
    panels: Mapping[str, tuple[Sequence[Bin], Sequence[Bin]]] = {
        kind: (one.raw_bins, one.calibrated_bins) for kind, one in calibration.types.items()
    } or {"answer": (calibration.raw_bins, calibration.calibrated_bins)}
    figure = Figure(figsize=(4.5 * len(panels), 4.5), layout="constrained")
    for axes, (kind, both) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        for bins, label in zip(both, ("before", "after"), strict=True):
            answers, confidence, accuracy = zip(*bins, strict=True)
            line = axes.plot(confidence, accuracy, label=label, linewidth=1)
            areas = [300 * count / sum(answers) for count in answers]
            axes.scatter(confidence, accuracy, s=areas, color=line[0].get_color(), alpha=0.5)
        axes.set(title=kind, xlabel="confidence", ylabel="share of right answers", xlim=(0, 1.02), ylim=(0, 1.02))
        axes.legend(loc="upper left")
    pictures.save(figure, out)
