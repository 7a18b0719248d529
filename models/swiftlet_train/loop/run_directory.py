"""The directory of a run. An interrupted run resumes from it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_train.recipe import RecipeError

HELD: Final[set[Path]] = set()  # the locks of this process


def claim_directory(directory: Path, settings: Mapping[str, Any], name: str = "run.json") -> None:
    """Creates a run's directory and records what decides the run's result, in the file `name`.

    Raises:
        RecipeError: the directory holds a run with different settings.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path, text = directory / name, json.dumps(settings, indent=1, sort_keys=True)
    if path.is_file() and path.read_text("utf-8") != text:
        raise RecipeError(
            f"{directory} holds a run of a different recipe or of other data. Name another directory, or delete it."
        )
    if not path.is_file():
        write_text_atomically(path, text)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps other processes from writing to a run's directory.

    Raises:
        RecipeError: another process writes to it.
    """
    path = (directory / "lock").resolve()
    if path in HELD:  # a student's run reads its teacher's
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecipeError(f"{directory} is in use by another run. Wait until it ends.") from None
        HELD.add(path)
        try:
            yield
        finally:
            HELD.discard(path)


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
