"""The directory of a run: all that is made on the way lies there, so that a run goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from models.training.recipe import RecipeError


def claim(directory: Path, facts: Mapping[str, Any]) -> None:
    """Ties a run's directory, which is made, to all that decides what comes out of the run.

    Raises:
        RecipeError: the directory holds a run that something else decided.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path, text = directory / "run.json", json.dumps(facts, indent=1, sort_keys=True)
    if path.is_file() and path.read_text("utf-8") != text:
        raise RecipeError(f"{directory} holds a run of a different recipe: name another directory, or delete this one.")
    if not path.is_file():
        write(path, lambda file: file.write(text.encode()))


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Writes beside and renames, so that a kill leaves the old file, or none, or the new one."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        fill(file)
    beside.replace(path)
