"""The JSON of request bodies, validated by pydantic.

pydantic parses the bytes itself, so two parsers cannot disagree. If a key occurs twice, the last value counts. Control
characters in a text, including NUL, are text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import INVALID_VALUES, FieldError, InvalidRequest, Unprocessable, invalid_value
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
    # Parsing holds the interpreter lock: a thread would block the event loop as well.
    if has_more_items(body, model.max_items):
        raise too_many_items(model.max_items)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _invalid_utf8(body) or _invalid(model, error) from None


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


def _invalid_utf8(body: bytes | bytearray) -> InvalidRequest | None:
    """Returns the error of a body that is not UTF-8. pydantic accepts none, and calls it invalid JSON."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return InvalidRequest("invalid_utf8", "The body is not valid UTF-8. Encode it as UTF-8.")
    return None


def _invalid(model: type[BaseModel], error: ValidationError) -> InvalidRequest | Unprocessable:
    if error.error_count() > MAX_ERRORS:
        detail = f"The body has more than {MAX_ERRORS} invalid values. Compare it with the schema in /openapi.json."
        return Unprocessable("validation_failed", detail)
    errors = error.errors(include_url=False, include_input=False)
    if errors[0]["type"] == "json_invalid":  # the only error then
        return InvalidRequest("invalid_json", "The body is not valid JSON. Check its syntax.")
    names = _field_names(model)
    field_errors = _relevant(list(dict.fromkeys(_field_error(error, names) for error in errors)))
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
            (cause.pointer == error.pointer and not cause.code.endswith("_type"))
            or cause.pointer.startswith(f"{error.pointer}/")
            for cause in errors
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


class Marks:
    """The fields that tell the bodies of a dialect from the others of the same route."""

    def __init__(self, fields: frozenset[str], max_items: int, others: type[BaseModel]) -> None:
        """Creates the marks.

        Args:
            fields: those that only bodies of the dialect have.
            max_items: the limit of its bodies.
            others: the model of the other bodies.
        """
        self._fields = fields
        self._max_items = max_items
        self._quoted = re.compile(b'"(?:%b)"' % "|".join(sorted(map(re.escape, fields))).encode())
        self._needed = [f'"{name}"'.encode() for name, field in others.model_fields.items() if field.is_required()]

    def are_in(self, body: bytes | bytearray) -> bool:
        """Returns whether a JSON body is one of the dialect. An invalid body is not.

        Raises:
            Unprocessable: the body has too many items for either.
        """
        if self._quoted.search(body) is None:  # the usual case costs no second parse
            return False
        if not all(name in body for name in self._needed):
            return True
        if has_more_items(body, self._max_items):
            raise too_many_items(BodyModel.max_items)
        try:
            document = from_json(body, cache_strings="keys")
        except ValueError:
            return False
        return isinstance(document, dict) and not self._fields.isdisjoint(document)


FEW: Final = 4096
"""The number of items of any type that take little time to parse."""
MAX_FIELDS: Final = 3 * FEW
"""The most lists, objects and fields of a text with more items. Each costs several times as much as a plain item."""
MAX_NESTED: Final = 2 * FEW
"""The most lists and objects of a text with more items. pydantic copies them into the errors of each union type."""
MAX_DIGITS: Final = 18
"""The most digits of a number in a text with more items. Larger integers cost microseconds each."""
SHORT: Final = 65_536
"""Bytes of a text whose numbers take little time to parse if its items are few."""
HUGE: Final = 400
"""The most digits of a number in a longer text. The time to parse an integer grows with the square of its digits."""
PART: Final = 1 << 16
"""Bytes of a text whose items are counted at a time: Python's lock is held for 0.2 ms at most."""


def has_more_items(text: bytes | bytearray, limit: int) -> bool:
    """Returns whether a JSON text has more than `limit` items of lists and fields of objects, or too costly ones.

    Every one but the first of a list or object follows a comma. An empty list or object counts as one. Of an invalid
    text, at least the items before the first error count: those that a parser would read.
    """
    few = min(limit, FEW)
    if len(text) <= few:
        return False
    codes = np.frombuffer(text, np.uint8)
    marks = sum([np.count_nonzero(codes == mark) for mark in b",[{"])  # strings included
    if marks <= few and not (len(text) > SHORT and _has_run(text, HUGE)):
        return False
    outside = _outside_strings(text, 4 * limit + 2)  # an item has two strings at most: its name and its value
    if outside is None:
        return True
    commas, fields, nested = outside.count(b","), outside.count(b":"), outside.count(b"[") + outside.count(b"{")
    if commas + nested <= few:
        return len(text) > SHORT and _has_run(outside, HUGE)
    if commas + nested > limit or nested > MAX_NESTED or fields + nested > MAX_FIELDS:
        return True
    return _has_run(outside, MAX_DIGITS)


def _outside_strings(text: bytes | bytearray, most: int) -> bytes | None:
    """Returns the parts of a JSON text that are outside of its strings, with quotes between them.

    None if there are more than `most` quotes.
    """
    outside, quotes = [], 0
    for part in in_turns(_parts(text)):
        if b"\\" in part:  # outside of strings, it ends what a parser reads
            part = part.replace(b"\\\\", b"--").replace(b'\\"', b"--")
        begins_inside = quotes % 2
        quotes += part.count(b'"')
        if quotes > most:
            return None
        outside.append(b'"' * begins_inside + b'"'.join(part.split(b'"')[begins_inside::2]))
    return b"".join(outside)


def _parts(text: bytes | bytearray) -> Iterator[bytes]:
    """Yields parts of a JSON text. A character stays together with the backslash before it."""
    start = 0
    while start < len(text):
        part = bytes(text[start : start + PART])
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = bytes(text[start : start + PART + 1])
        yield part
        start += len(part)


def _has_run(text: bytes | bytearray, size: int) -> bool:
    """Returns whether a text has a run of more than `size` digits."""
    codes = np.frombuffer(text, np.uint8)
    starts = in_turns(range(0, len(codes), PART))
    return any(_longest_run(codes[start : start + PART + size], size) > size for start in starts)


def _longest_run(codes: NDArray[np.uint8], size: int) -> int:
    """Returns the length of the longest run of digits, or 0 if no run can be longer than `size`."""
    digits = codes - 48 < 10  # unsigned: other characters are above 9
    block = max(1, size // 2)  # wherever a longer run begins, it covers a whole block
    if not digits[: len(digits) // block * block].reshape(-1, block).all(axis=1).any():
        return 0
    ends = np.concatenate([[-1], np.flatnonzero(~digits), [len(digits)]])
    return int(np.diff(ends).max()) - 1
