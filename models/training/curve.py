"""The curve of a run: what was lost on the way, as a table in one CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swiftlet_serve.models.training.run import write_text

NAME: Final = "losses.csv"  # in the directory of a run


@dataclass(frozen=True)
class Point:
    """Where a run was after `step` steps."""

    step: int
    learning_rate: float
    losses: Mapping[str, float]  # means since the point before; a loss that was not asked for is not there
    seconds: float  # that the run has trained, all its sessions together
    flops: float = 0.0  # floating-point operations that this took, of the matrix products


def read_curve(path: Path) -> list[Point]:
    """The points of a file. None if there is no file, or one without a header, as earlier versions wrote it."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [_point(row) for row in rows if "step" in row]


def _point(row: dict[str, str]) -> Point:
    step, rate, seconds = (row.pop(name) for name in ("step", "learning_rate", "seconds"))
    flops = row.pop("flops", "0")  # earlier versions did not count
    losses = {name: float(value) for name, value in row.items() if value}
    return Point(int(step), float(rate), losses, float(seconds), float(flops))


def write_curve(path: Path, points: Sequence[Point]) -> None:
    """Writes the whole file anew: a kill leaves no half of a line, and a loss that comes later gets its column."""
    names = dict.fromkeys(name for point in points for name in point.losses)
    text = io.StringIO()
    table = csv.DictWriter(text, ["step", "learning_rate", *names, "seconds", "flops"], restval="", lineterminator="\n")
    table.writeheader()
    for point in points:
        losses = {name: f"{value:.6g}" for name, value in point.losses.items()}
        rest = {"learning_rate": f"{point.learning_rate:.6g}", "seconds": f"{point.seconds:.1f}"}
        rest["flops"] = f"{point.flops:.6g}"
        table.writerow({"step": point.step, **losses, **rest})
    write_text(path, text.getvalue())
