"""The words of errors: one sentence or two for each, in the terms of the protocol that the client speaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from swiftlet_serve.errors import INVALID_VALUES, FieldError, SwiftletError
from swiftlet_serve.tasks._requests import TRUNCATION

TYPES: Final[Mapping[str, str]] = {
    "string_type": "a text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""The expected type in words, by the code of the type error."""

RULES: Final[Mapping[str, str]] = {
    "missing": "{place} is missing. Add it.",
    "too_long": "{place} has more than {limit} items. Send fewer in one request.",
    "too_short": "{place} has too few items. Send at least {limit}.",
    "string_too_long": "{place} has more than {limit} characters. Shorten it.",
    "string_too_short": "{place} has too few characters. Send at least {limit}.",
    "greater_than_equal": "{place} must be at least {limit}.",
    "less_than_equal": "{place} must be at most {limit}.",
    "no_token_left": "{place} must be at least {limit}: fewer tokens leave nothing of a text beside the model's own.",
    "extra_forbidden": "{place} has a field that is not allowed. /openapi.json lists its fields.",
    "literal_error": "{place} is none of the values that /openapi.json lists for it.",
}
"""The problem and its remedy in words, by the code of the error."""

INDEX: Final = re.compile(r"/\d+(?:/|$)")


class Wording(NamedTuple):
    """The names that the clients of a protocol use for the parts of our requests."""

    place: Callable[[str], str] = str
    """Maps a JSON Pointer in our request to the pointer of the same value in the client's body."""
    truncation: str = TRUNCATION
    """The remedy for a text that is too long, beside shortening it."""

    def apply(self, error: SwiftletError) -> None:
        """Puts an error of our request in the client's terms."""
        error.detail = error.detail.replace(TRUNCATION, self.truncation)
        error.field_errors = tuple(
            replace(field_error, pointer=self.place(field_error.pointer)) for field_error in error.field_errors
        )


OWN: Final = Wording()


def renamed(names: Mapping[str, str]) -> Callable[[str], str]:
    """Returns a `place` that replaces the beginning of a pointer. The first name that fits counts."""

    def place(pointer: str) -> str:
        for own, theirs in names.items():
            if pointer == own or pointer.startswith(f"{own}/"):
                return theirs + pointer[len(own) :]
        return pointer

    return place


def sentence(error: SwiftletError) -> str:
    """Returns the detail of an error. It names the first invalid value, with its index if it is in a list."""
    if not error.field_errors:
        return error.detail
    first = error.field_errors[0]
    if error.detail != INVALID_VALUES:
        return f"{error.detail} (At {first.pointer}.)" if INDEX.search(first.pointer) else error.detail
    place = first.pointer or "The body"
    if first.code in TYPES:
        return f"{place} must be {' or '.join(_types(error.field_errors, first.pointer))}."
    rule = RULES.get(first.code, "{place} is invalid ({code}). /openapi.json describes it.")
    return rule.format(place=place, limit=first.limit, code=first.code)


def _types(errors: Sequence[FieldError], pointer: str) -> list[str]:
    """Returns the types that a value may have, as the errors at its place tell."""
    return list(
        dict.fromkeys(TYPES[error.code] for error in errors if error.pointer == pointer and error.code in TYPES)
    )
