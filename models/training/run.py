"""The directory of a run: all that is made on the way lies there, so that a run goes on where it was stopped."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from swiftlet_serve.models.training.recipe import RecipeError


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
        write_text(path, text)


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Writes beside and renames, so that a kill leaves the old file, or none, or the new one."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        fill(file)
    beside.replace(path)


def write_text(path: Path, text: str) -> None:
    """Writes a text in the same way."""
    write(path, lambda file: file.write(text.encode()))


class Stop:
    """Holds back the first signal to stop (SIGINT, SIGTERM) while it is entered; a second one stops at once.

    A signal that is ignored stays so. Outside the main thread, where Python hears no signals, nothing is held back.
    """

    def __init__(self) -> None:
        self.number: int | None = None  # the signal that is held back
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._hold)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def now(self) -> None:
        """Lets the signal that is held back have its way, if there is one."""
        if self.number is not None:
            signal.raise_signal(self.number)

    def _hold(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # a handler's shape
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
