"""Error responses: RFC 9457 problem details, with the fields that Hugging Face and TEI clients expect."""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from typing import Annotated, Final

from pydantic import BaseModel, Field
from starlette.responses import Response

from swiftlet_serve.errors import FieldError, Internal, SwiftletError, log_exception
from swiftlet_serve.http.wording import sentence

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
MAX_FIELD_ERRORS: Final = 16


class FieldErrorBody(BaseModel):
    """An invalid value in the request body."""

    pointer: Annotated[str, Field(description="JSON Pointer to the invalid value. Empty for the whole body.")]
    code: Annotated[str, Field(description="The rule that the value breaks.")]
    limit: Annotated[float | int | None, Field(description="The bound of the rule, if it has one.")] = None
    nearest: Annotated[str | None, Field(description="The allowed name that is most similar to an unknown one.")] = None


class Problem(BaseModel):
    """An error. It never contains text from the request."""

    type: Annotated[str, Field(description="URN of the error code.", examples=["urn:swiftlet:error:validation_failed"])]
    title: Annotated[str, Field(description="Class of the error.")]
    status: Annotated[int, Field(description="HTTP status.", examples=[422])]
    detail: Annotated[str, Field(description="What is wrong, and how to fix it.")]
    instance: Annotated[str, Field(description="URN of this request, with the ID of the X-Request-Id header.")]
    code: Annotated[str, Field(description="Error code for programs. Its meaning never changes.")]
    retryable: Annotated[bool, Field(description="Whether the same request may succeed later.")]
    error: Annotated[str, Field(description="Copy of detail, for Hugging Face clients.")]
    error_type: Annotated[str, Field(description="Copy of code, for TEI clients.")]
    errors: Annotated[
        list[FieldErrorBody] | None,
        Field(description=f"Invalid values of the request body, at most {MAX_FIELD_ERRORS}."),
    ] = None


def render(error: SwiftletError, request_id: str) -> Response:
    """Returns the response to a failed request. Never raises: a failure to render has a response made in advance."""
    try:
        return _render(error, request_id)
    except Exception as mistake:
        log_exception(log, f"the error response to request {request_id} could not be created", mistake)
        return Response(FALLBACK, 500, media_type=MEDIA_TYPE)


def _render(error: SwiftletError, request_id: str) -> Response:
    field_errors = error.field_errors[:MAX_FIELD_ERRORS]
    before, after = _around_id(error.code, error.title, error.status, error.retryable, sentence(error), field_errors)
    return Response(before + request_id.encode() + after, error.status, headers(error), MEDIA_TYPE)


def headers(error: SwiftletError) -> dict[str, str]:
    """Returns the headers of the response to an error, in any form."""
    if error.retry_after is None:
        return error.headers
    return error.headers | {"retry-after": str(math.ceil(error.retry_after))}


@lru_cache(maxsize=128)
def _around_id(
    code: str, title: str, status: int, retryable: bool, detail: str, field_errors: tuple[FieldError, ...]
) -> tuple[bytes, bytes]:
    """Returns a problem's JSON before and after the request ID. Under overload it is needed thousands of times."""
    problem = Problem(
        type=f"urn:swiftlet:error:{code}",
        title=title,
        status=status,
        detail=detail,
        instance="urn:request:\0",
        code=code,
        retryable=retryable,
        error=detail,
        error_type=code,
        errors=[FieldErrorBody(**vars(error)) for error in field_errors] or None,
    )
    before, _, after = problem.model_dump_json(exclude_none=True).encode().partition(b"\\u0000")
    return before, after


FALLBACK: Final = bytes(_render(Internal("internal", "The server failed unexpectedly."), "unknown").body)
