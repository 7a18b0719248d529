"""Draws the scores of the bundled and of the published models over their sizes, from the tables of a page.

    python docs/plot_defaults.py       writes benchmarks/defaults.svg

A row without a size is a baseline, drawn as a line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

BENCHMARKS: Final = Path(__file__).parent / "benchmarks"
PAGE: Final = BENCHMARKS / "defaults.md"
PICTURE: Final = BENCHMARKS / "defaults.svg"
PANELS: Final = ("SST-2, accuracy", "CoLA, Matthews", "SQuAD 2.0, F1", "NSMC, accuracy")
"""The columns with scores."""
STYLE: Final = {"svg.hashsalt": "swiftlet", "svg.fonttype": "none", "font.size": 8}
"""Equal tables make equal files."""


class Row(NamedTuple):
    """A model of a table."""

    name: str
    size: float | None
    """In MB."""
    score: float
    is_ours: bool


def draw(page: str) -> str:
    """Returns the picture of a page's tables, as SVG."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(10, 8), layout="constrained")
        for axes, column in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
            _draw_panel(axes, column, list(read_rows(page, column)))
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    return re.sub(r"[ \t]+$", "", content.getvalue(), flags=re.MULTILINE)


def read_rows(page: str, column: str) -> Iterator[Row]:
    """Yields the rows of the page's first table with this column that have a score in it."""
    lines = page.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| Model | Size |") and f"| {column} |" in line)
    index = _cells(lines[first]).index(column)
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            return
        name, size, *_ = cells = _cells(line)
        if re.fullmatch(r"[\d.]+", cells[index]):
            match = re.match(r"[\d.,]+(?= MB)", size)
            megabytes = float(match[0].replace(",", "")) if match else None
            yield Row(
                re.split(r",| \(| after ", re.sub(r"[*`]", "", name))[0],
                megabytes,
                float(cells[index]),
                name.startswith("**"),
            )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _draw_panel(axes: Axes, column: str, rows: list[Row]) -> None:
    span = max(row.score for row in rows) - min(row.score for row in rows)
    for name, size, score, is_ours in rows:
        if size is None:
            axes.axhline(score, color="0.6", linestyle=":", zorder=0)
            axes.annotate(name, (0.01, score), (0, 2), ("axes fraction", "data"), "offset points", color="0.4")
        else:
            colour = "tab:blue" if is_ours else "0.35"
            axes.scatter(size, score, color=colour, s=24)
            is_below = any(
                0 < other.score - score < span / 20 and other.size and other.size < 2 * size for other in rows
            )
            offset = (4, -10 if is_below else 3)
            axes.annotate(name, (size, score), offset, textcoords="offset points", color=colour)
    axes.set(title=column, xscale="log", xlabel="size in MB")
    axes.margins(x=0.4, y=0.1)
    axes.xaxis.set_major_formatter(ScalarFormatter())


if __name__ == "__main__":
    PICTURE.write_text(draw(PAGE.read_text("utf-8")), "utf-8")
