"""The directory of a run, from which an interrupted run resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.training.recipe import RecipeError


def claim_directory(directory: Path, settings: Mapping[str, Any]) -> None:
    """Creates a run's directory and records the settings that decide the run's result.

    Raises:
        RecipeError: the directory holds a run with different settings.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path, text = directory / "run.json", json.dumps(settings, indent=1, sort_keys=True)
    if path.is_file() and path.read_text("utf-8") != text:
        raise RecipeError(f"{directory} holds a run of a different recipe: name another directory, or delete this one.")
    if not path.is_file():
        write_text_atomically(path, text)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a temporary file and renames it, so that an interruption never leaves a partial file."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        write(file)
    temporary.replace(path)


def write_array_atomically(path: Path, array: NDArray[Any]) -> None:
    """Writes a `.npy` file atomically."""
    write_atomically(path, lambda file: np.save(file, array))


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))
