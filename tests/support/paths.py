"""Folders that the tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
"""The repository."""

TESTS: Final = ROOT / "tests"
DATA: Final = ROOT.parent / "shared/data"
"""Data sets, which are not part of the repository. Tests that need one are skipped where it is absent."""
