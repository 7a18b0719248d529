"""Request bodies: UTF-8 JSON of limited size, validated by pydantic.

pydantic parses the bytes itself, so two parsers cannot disagree. If a key occurs twice, the last value counts. Control
characters in a text, including NUL, are text.
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
"""The keys of pydantic's error context that hold a violated limit."""

MAX_ERRORS: Final = 100
"""Errors that are described. A body of 1 MB can have 90,000, which would block the event loop for seconds."""


async def read(request: Request, max_bytes: int) -> bytes:
    """Reads the body of a request.

    Raises:
        UnsupportedMediaType: the headers declare something other than uncompressed JSON in UTF-8.
        PayloadTooLarge: the declared or the received size exceeds `max_bytes`. The connection is closed then.
        starlette.requests.ClientDisconnect: the client disconnected.
    """
    _check_media_type(request.headers)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and float(declared) > max_bytes:  # int refuses numbers of very many digits
        raise _too_large(max_bytes)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def parse(model: type[RequestT], body: bytes | bytearray) -> RequestT:
    """Validates a body against a pydantic model.

    Raises:
        InvalidRequest: the body is not UTF-8 or not JSON.
        Unprocessable: the body violates the model. The error names the places and rules, never the values.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_utf8", "The body is not valid UTF-8. Encode it as UTF-8.") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > MAX_ERRORS:
            detail = f"The body has more than {MAX_ERRORS} invalid values. Compare it with the schema in /openapi.json."
            raise Unprocessable("validation_failed", detail) from None
        errors = error.errors(include_url=False, include_input=False)
        if errors[0]["type"] == "json_invalid":  # the only error then
            raise InvalidRequest("invalid_json", "The body is not valid JSON. Check its syntax.") from None
        field_errors = list(dict.fromkeys(_field_error(one, _field_names(model)) for one in errors))
        detail = "The body has invalid values. The list of errors names each place and the rule that it breaks."
        raise Unprocessable("validation_failed", detail, field_errors=field_errors) from None


def _check_media_type(headers: Headers) -> None:
    """Checks the Content-Type and Content-Encoding. Without a Content-Type, the body counts as JSON."""
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        detail = "The server does not accept compressed bodies. Send the body without Content-Encoding."
        raise UnsupportedMediaType(
            "unsupported_encoding", detail, headers={"accept-encoding": "identity", "connection": "close"}
        )
    media_type, *parameters = headers.get("content-type", "application/json").lower().split(";")
    charsets = {name.strip().removeprefix("charset=").strip('"') for name in parameters if name.strip()}
    if media_type.strip() != "application/json" or not charsets <= {"utf-8", "utf8"}:
        detail = "The Content-Type is not supported. Send application/json in UTF-8."
        raise UnsupportedMediaType(
            "unsupported_media_type", detail, headers={"accept": "application/json", "connection": "close"}
        )


def _too_large(max_bytes: int) -> PayloadTooLarge:
    detail = f"The body is larger than {max_bytes} bytes. Send a smaller one, or split the request."
    return PayloadTooLarge("body_too_large", detail, headers={"connection": "close"})


def _field_error(error: ErrorDetails, names: frozenset[str]) -> FieldError:
    context = error.get("ctx", {})
    limit = next((context[bound] for bound in BOUNDS if isinstance(context.get(bound), int | float)), None)
    # The pointer holds indices and field names of the model only. Other steps of pydantic's path are its names for the
    # branches of a union, or keys from the request.
    path = error["loc"][:-1] if error["type"] == "extra_forbidden" else error["loc"]
    pointer = "".join(f"/{step}" for step in path if isinstance(step, int) or step in names)
    return FieldError(pointer, error["type"], limit)


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
