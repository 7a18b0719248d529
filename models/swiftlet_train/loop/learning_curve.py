"""The learning curve of a run: its losses by step, in a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swiftlet_train.loop.run_directory import write_text_atomically

LOSSES_FILE: Final = "losses.csv"  # in a run's directory


@dataclass(frozen=True)
class CurvePoint:
    """The state of a run after `step` steps."""

    step: int
    learning_rate: float
    losses: Mapping[str, float]
    """Means since the point before. A loss that was not computed is absent."""
    seconds: float
    """Training time of all sessions of the run."""
    flops: float = 0.0
    """Floating-point operations of the matrix products."""


def read_curve(path: Path) -> list[CurvePoint]:
    """Reads the points of a learning curve. Returns none if the file is missing or has no header."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [_parse_point(row) for row in rows if "step" in row]


def _parse_point(row: dict[str, str]) -> CurvePoint:
    step, rate, seconds = (row.pop(name) for name in ("step", "learning_rate", "seconds"))
    flops = row.pop("flops", "0")
    losses = {name: float(value) for name, value in row.items() if value}
    return CurvePoint(int(step), float(rate), losses, float(seconds), float(flops))


def write_curve(path: Path, points: Sequence[CurvePoint]) -> None:
    """Rewrites the whole file, because a new loss adds a column."""
    names = dict.fromkeys(name for point in points for name in point.losses)
    text = io.StringIO()
    table = csv.DictWriter(text, ["step", "learning_rate", *names, "seconds", "flops"], restval="", lineterminator="\n")
    table.writeheader()
    for point in points:
        losses = {name: f"{value:.6g}" for name, value in point.losses.items()}
        rest = {"learning_rate": f"{point.learning_rate:.6g}", "seconds": f"{point.seconds:.1f}"}
        rest["flops"] = f"{point.flops:.6g}"
        table.writerow({"step": point.step, **losses, **rest})
    write_text_atomically(path, text.getvalue())
