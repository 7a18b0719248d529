"""Pictures for documents: the same figure gives the same file, and an SVG has text instead of outlines."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure


def save(figure: Figure, out: Path, kind: str = "svg") -> None:
    """Writes a figure to a file of a kind that matplotlib knows."""
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format=kind, metadata={"Date": None})
