"""The one way an error leaves: an RFC 9457 problem that clients of Hugging Face and TEI can read too."""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from typing import Annotated, Final

from pydantic import BaseModel, Field
from starlette.responses import Response

from swiftlet_serve.service.errors import FieldError, Internal, SwiftletError, log_exception

log = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
MAX_FIELD_ERRORS: Final = 16


class FieldErrorBody(BaseModel):
    """One thing wrong in the request body."""

    pointer: Annotated[str, Field(description="JSON Pointer to the value at fault; empty for the whole body.")]
    code: Annotated[str, Field(description="The rule that was broken.")]
    limit: Annotated[float | int | None, Field(description="The bound, where the rule has one.")] = None


class Problem(BaseModel):
    """What went wrong. It never holds any of the request's text."""

    type: Annotated[str, Field(description="A URN of the code.", examples=["urn:swiftlet:error:validation_failed"])]
    title: Annotated[str, Field(description="The kind of error.")]
    status: Annotated[int, Field(description="The HTTP status.", examples=[422])]
    detail: Annotated[str, Field(description="A sentence for a person.")]
    instance: Annotated[str, Field(description="A URN of this request; the id is that of the header X-Request-Id.")]
    code: Annotated[str, Field(description="What to decide upon: it never changes meaning.")]
    retryable: Annotated[bool, Field(description="Whether the same request may succeed later.")]
    error: Annotated[str, Field(description="The detail again, where Hugging Face's clients look for it.")]
    error_type: Annotated[str, Field(description="The code again, where TEI's clients look for it.")]
    errors: Annotated[
        list[FieldErrorBody] | None, Field(description=f"What is wrong in the body: at most {MAX_FIELD_ERRORS} of it.")
    ] = None


def render(error: SwiftletError, request_id: str) -> Response:
    """The response to a request that failed. This cannot fail itself: there is one made beforehand."""
    try:
        return _render(error, request_id)
    except Exception as mistake:
        log_exception(log, f"the error of request {request_id} could not be rendered", mistake)
        return Response(LAST_RESORT, 500, media_type=MEDIA_TYPE)


def _render(error: SwiftletError, request_id: str) -> Response:
    field_errors = error.field_errors[:MAX_FIELD_ERRORS]
    before, after = _around_id(error.code, error.title, error.status, error.retryable, error.detail, field_errors)
    headers = error.headers
    if error.retry_after is not None:
        headers = headers | {"retry-after": str(math.ceil(error.retry_after))}
    return Response(before + request_id.encode() + after, error.status, headers, MEDIA_TYPE)


@lru_cache(maxsize=128)
def _around_id(
    code: str, title: str, status: int, retryable: bool, detail: str, field_errors: tuple[FieldError, ...]
) -> tuple[bytes, bytes]:
    """A problem's JSON before and after the request's id; that of an overload is wanted thousands of times a second."""
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
        errors=[FieldErrorBody(**vars(fault)) for fault in field_errors] or None,
    )
    before, _, after = problem.model_dump_json(exclude_none=True).encode().partition(b"\\u0000")
    return before, after


LAST_RESORT: Final = bytes(_render(Internal("internal", "The server made a mistake."), "unknown").body)
