"""Reading a request body: capped, strict, and with one meaning.

The bytes are UTF-8 JSON and nothing else; pydantic parses them, so there is no second parser to disagree with it. Of a
key that occurs twice the last value counts. Control characters in a text, NUL included, are text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.requests import Request

from swiftlet_serve.service.errors import (
    FieldError,
    InvalidRequest,
    PayloadTooLarge,
    Unprocessable,
    UnsupportedMediaType,
)

RequestT = TypeVar("RequestT", bound=BaseModel)

BOUNDS: Final = ("max_length", "min_length", "le", "ge", "lt", "gt")
"""Where pydantic's errors keep the limit that was broken."""

MAX_LISTED: Final = 100
"""Errors that are looked at: a megabyte can have 90,000, and to list them would hold everybody up for seconds."""


async def read(request: Request, max_bytes: int) -> bytes:
    """The body as it came.

    Raises:
        UnsupportedMediaType: it is declared to be something other than plain JSON in UTF-8.
        PayloadTooLarge: as declared, or as soon as more than `max_bytes` have come. The connection is closed then.
        starlette.requests.ClientDisconnect: the client hung up.
    """
    _check_media(request.headers)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and float(declared) > max_bytes:  # a float, since digits without end are no int
        raise _too_large(max_bytes)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def parse(model: type[RequestT], body: bytes) -> RequestT:
    """Validates a body.

    Raises:
        InvalidRequest: it is not UTF-8, or not JSON.
        Unprocessable: it is not what the model describes. The error says where and which rule, never what was sent.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_utf8", "The body is not UTF-8.") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > MAX_LISTED:
            detail = f"The body is not as described, in more than {MAX_LISTED} places."
            raise Unprocessable("validation_failed", detail) from None
        errors = error.errors(include_url=False, include_input=False)
        if errors[0]["type"] == "json_invalid":  # the only one there is then
            raise InvalidRequest("invalid_json", "The body is not JSON.") from None
        field_errors = list(dict.fromkeys(_field_error(one, _names(model)) for one in errors))
        raise Unprocessable("validation_failed", "The body is not as described.", field_errors=field_errors) from None


def _check_media(headers: Headers) -> None:
    """A missing content type is taken for JSON, since some clients send none."""
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        detail = "Compressed bodies are not read."
        raise UnsupportedMediaType(
            "unsupported_encoding", detail, headers={"accept-encoding": "identity", "connection": "close"}
        )
    media, *parameters = headers.get("content-type", "application/json").lower().split(";")
    charsets = {name.strip().removeprefix("charset=").strip('"') for name in parameters if name.strip()}
    if media.strip() != "application/json" or not charsets <= {"utf-8", "utf8"}:
        detail = "The body has to be application/json in UTF-8."
        raise UnsupportedMediaType(
            "unsupported_media_type", detail, headers={"accept": "application/json", "connection": "close"}
        )


def _too_large(max_bytes: int) -> PayloadTooLarge:
    detail = f"The body is larger than {max_bytes} bytes."
    return PayloadTooLarge("body_too_large", detail, headers={"connection": "close"})


def _field_error(error: ErrorDetails, names: frozenset[str]) -> FieldError:
    context = error.get("ctx", {})
    limit = next((context[bound] for bound in BOUNDS if isinstance(context.get(bound), int | float)), None)
    # Of the path only indices and our own names: the rest is pydantic's naming of a union's branches, or a key that the
    # caller made up.
    path = error["loc"][:-1] if error["type"] == "extra_forbidden" else error["loc"]
    pointer = "".join(f"/{step}" for step in path if isinstance(step, int) or step in names)
    return FieldError(pointer, error["type"], limit)


@functools.cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    """The names of all fields of a model and of the models in it."""

    def walk(schema: Any) -> Iterator[str]:
        if isinstance(schema, dict):
            yield from schema.get("properties", {})
            for value in schema.values():
                yield from walk(value)
        elif isinstance(schema, list):
            for value in schema:
                yield from walk(value)

    return frozenset(walk(model.model_json_schema()))
