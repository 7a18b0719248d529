"""What the existing endpoint answered, as training data: lines of JSON with `text` and `label`.

`swiftlet train`, `calibrate` and `evaluate` read them. Only the owner of the file can read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from swiftlet_serve.errors import SetupError, SwiftletError
from swiftlet_serve.http.dialect_parts.questions import text_of
from swiftlet_serve.http.dialects.decisions import Message, input_text
from swiftlet_serve.migration.replay import Pair

MODE: Final = 0o600
INPUT: Final = TypeAdapter[str | list[Message]](str | list[Message])


class TrainingData:
    """The file. Its labels answer one question."""

    def __init__(self, path: Path, question: str | None) -> None:
        """Creates the file.

        Args:
            path: of the file, which must not exist.
            question: the name of the question. None: requests must ask one.

        Raises:
            SetupError: the file exists, or cannot be created.
        """
        self._path, self._question = path, question
        self.rows = 0
        try:
            self._file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "wb")  # noqa: SIM115  # `close`
        except FileExistsError:
            raise SetupError(f"{path} exists. Name a new file for the training data.") from None
        except OSError as error:
            raise SetupError(f"{path} cannot be created: {error.strerror}") from None

    def add(self, pair: Pair) -> None:
        """Writes what the existing endpoint answered to a request. Refusals, vectors and rankings have no label.

        Raises:
            SetupError: the request asks several questions, and none is named.
        """
        answers = pair.existing.answers or ()
        if self._question is not None:
            answers = [answer for answer in answers if answer.question == self._question]
        texts = _texts(pair.entry.body)
        if len(texts) == 1 < len(answers):
            raise SetupError(
                f"Line {pair.entry.line} of the log asks several questions. Name the one to learn with --question."
            )
        if len(texts) != len(answers):
            return
        for text, answer in zip(texts, answers, strict=True):
            if isinstance(label := answer.label, str) and text.strip():
                self._file.write(to_json({"text": text, "label": label}) + b"\n")
                self.rows += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self.rows:
            self._path.unlink()


def _texts(body: dict[str, Any]) -> list[str]:
    """Returns the texts that a request asks about, one for each answer or one for all; nothing if they are unknown."""
    inputs = body.get("inputs")
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, list):
        return inputs if all(isinstance(text, str) for text in inputs) else []
    try:
        if "state" in body:
            return [text_of(body["state"], "/state")]
        return [input_text(INPUT.validate_python(body.get("input")))]
    except (ValidationError, SwiftletError):
        return []
