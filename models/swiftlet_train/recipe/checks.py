"""The error of an invalid recipe, and the check of a value that is one of several."""

from __future__ import annotations

from typing import Any, get_args

from swiftlet_models.errors import ModelError


class RecipeError(ModelError):
    """Raised when a recipe is invalid or cannot be run. The message is one sentence."""


def check_choice(name: str, value: str, choices: Any) -> None:
    """Raises RecipeError if the value is not one of the choices of a `Literal`."""
    if value not in get_args(choices):
        raise RecipeError(f"{name} must be one of {', '.join(get_args(choices))}, not {value!r}.")
