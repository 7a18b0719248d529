"""A known failure of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Weakness:
    """A known failure of the model, with an example."""

    about: str
    """A short description."""
    inputs: str | Mapping[str, str]
    """The inputs of a request."""
    right: str
    """The correct label, answer, word or text."""
    texts: tuple[str, ...] = ()
    """For an embedding model: texts. The nearest one to the input is the answer."""
