"""The JSON of request bodies, validated by pydantic.

pydantic parses the bytes itself, so two parsers cannot disagree. If a key occurs twice, the last value counts. Control
characters in a text, including NUL, are text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from swiftlet_serve.errors import FieldError, InvalidRequest, Unprocessable, invalid_value
from swiftlet_serve.http.endpoints import json_items
from swiftlet_serve.http.wording import INVALID_VALUES
from swiftlet_serve.types.body_model import BodyModel

MAX_NAME_CHARACTERS: Final = 32

RequestT = TypeVar("RequestT", bound=BaseModel)
BodyT = TypeVar("BodyT", bound=BodyModel)

BOUNDS: Final = ("max_length", "min_length", "le", "ge", "lt", "gt")
"""The keys of pydantic's error context that hold a violated limit."""

MAX_ERRORS: Final = 100
"""Errors that are described."""


def parse(model: type[BodyT], body: bytes | bytearray) -> BodyT:
    """Validates a JSON body against a pydantic model.

    Raises:
        InvalidRequest: the body is not UTF-8 or not JSON.
        Unprocessable: the body violates the model or has too many items. The error names the places and rules, never
            the values.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_utf8", "The body is not valid UTF-8. Encode it as UTF-8.") from None
    # Parsing holds the interpreter lock, so that a thread would block the event loop as well.
    if json_items.exceeds(body, model.max_items):
        raise too_many_items(model.max_items)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(model, error) from None


def validate(model: type[RequestT], fields: Mapping[str, Any]) -> RequestT:
    """Validates decoded fields against a pydantic model.

    Raises:
        Unprocessable: the fields violate the model. The error names the places and rules, never the values.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _invalid(model, error) from None


def too_many_items(limit: int, pointer: str = "") -> Unprocessable:
    """Returns the error of a body, or of a value, with more than `limit` list items and fields."""
    detail = f"The body has more than {limit} list items and fields in total, or too large numbers. Send fewer."
    return invalid_value(pointer, "too_many_items", detail, limit)


def _invalid(model: type[BaseModel], error: ValidationError) -> InvalidRequest | Unprocessable:
    if error.error_count() > MAX_ERRORS:
        detail = f"The body has more than {MAX_ERRORS} invalid values. Compare it with the schema in /openapi.json."
        return Unprocessable("validation_failed", detail)
    errors = error.errors(include_url=False, include_input=False)
    if errors[0]["type"] == "json_invalid":  # the only error then
        return InvalidRequest("invalid_json", "The body is not valid JSON. Check its syntax.")
    names = _field_names(model)
    field_errors = _relevant(list(dict.fromkeys(_field_error(one, names) for one in errors)))
    if errors[0]["type"] == "extra_forbidden" and (nearest := _nearest(str(errors[0]["loc"][-1]), names)):
        field_errors[0] = replace(field_errors[0], nearest=nearest)
        detail = f"The body has a field that is not allowed. Did you mean {nearest}?"
        return Unprocessable("validation_failed", detail, field_errors=field_errors)
    return Unprocessable("validation_failed", INVALID_VALUES, field_errors=field_errors)


def _relevant(errors: Sequence[FieldError]) -> list[FieldError]:
    """Drops the errors of alternatives that the client did not choose.

    If a value may be a text or a list, and a list is too long, pydantic also says that it is no text.
    """

    def is_chosen(error: FieldError) -> bool:
        return not error.code.endswith("_type") or not any(
            (one.pointer == error.pointer and not one.code.endswith("_type"))
            or one.pointer.startswith(f"{error.pointer}/")
            for one in errors
        )

    return [error for error in errors if is_chosen(error)]


def _field_error(error: ErrorDetails, names: frozenset[str]) -> FieldError:
    context = error.get("ctx", {})
    limit = next((context[bound] for bound in BOUNDS if isinstance(context.get(bound), int | float)), None)
    # The pointer holds indices and field names of the model only. Other steps of pydantic's path are its names for the
    # branches of a union, or keys from the request.
    path = error["loc"][:-1] if error["type"] == "extra_forbidden" else error["loc"]
    pointer = "".join(f"/{step}" for step in path if isinstance(step, int) or step in names)
    return FieldError(pointer, error["type"], limit)


def _nearest(name: str, names: frozenset[str]) -> str | None:
    """Returns the name that is most similar to an unknown one. A long one is the client's text, and is not compared."""
    similar = get_close_matches(name, sorted(names), 1) if len(name) <= MAX_NAME_CHARACTERS else []
    return similar[0] if similar else None


@functools.cache
def _field_names(model: type[BaseModel]) -> frozenset[str]:
    """Returns the names of all fields of a model and of its nested models."""

    def walk(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            yield from schema.get("properties", {})
            for value in schema.values():
                yield from walk(value)
        elif isinstance(schema, list):
            for value in schema:
                yield from walk(value)

    return frozenset(walk(model.model_json_schema()))
