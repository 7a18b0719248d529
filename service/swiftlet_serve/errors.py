"""Errors of the service.

Every error of a request is a `SwiftletError`. Its class sets the HTTP status and the title; the instance adds a code
and a detail. `docs/reference/errors.md` lists them all.

Codes are part of the API: their meaning never changes. No message contains text from the request.

Errors of the installation are a `SetupError`, which ends the process.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

INVALID_VALUES: Final = "The body has invalid values. The list of errors names each place and the rule that it breaks."


@dataclass(frozen=True)
class FieldError:
    """An invalid value in a request body."""

    pointer: str  # JSON Pointer (RFC 6901) to the value
    code: str  # the rule that the value breaks
    limit: int | float | None = None  # the bound of the rule, if it has one
    nearest: str | None = None  # the allowed name that is most similar to an unknown one


class SwiftletError(Exception):
    """Base class of all request errors."""

    status: ClassVar[int]
    title: ClassVar[str]
    codes: ClassVar[frozenset[str]]
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field_errors: Sequence[FieldError] = (),
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        """Creates an error of one of the class's `codes`.

        Args:
            code: the error code that clients compare.
            detail: one or two sentences: what is wrong, and what the client can do.
            field_errors: the invalid values of the request body.
            retry_after: seconds until the client may retry.
            headers: additional headers of the response.
        """
        assert code in self.codes, code  # noqa: S101  # a programming error, which the tests find
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field_errors = tuple(field_errors)
        self.retry_after = retry_after
        self.headers = dict(headers or {})


class InvalidRequest(SwiftletError):
    status = 400
    title = "Bad request"
    codes = frozenset({"bad_framing", "invalid_json", "invalid_utf8"})


class Unauthorized(SwiftletError):
    status = 401
    title = "Unauthorized"
    codes = frozenset({"missing_key", "bad_key"})


class NotFound(SwiftletError):
    status = 404
    title = "Not found"
    codes = frozenset({"unknown_route", "unknown_model"})


class MethodNotAllowed(SwiftletError):
    status = 405
    title = "Method not allowed"
    codes = frozenset({"method_not_allowed"})


class RequestTimeout(SwiftletError):
    status = 408
    title = "Request timeout"
    codes = frozenset({"receive_timeout"})
    retryable = True


class PayloadTooLarge(SwiftletError):
    status = 413
    title = "Payload too large"
    codes = frozenset({"body_too_large"})


class UriTooLong(SwiftletError):
    status = 414
    title = "URI too long"
    codes = frozenset({"uri_too_long"})


class UnsupportedMediaType(SwiftletError):
    status = 415
    title = "Unsupported media type"
    codes = frozenset({"unsupported_media_type", "unsupported_encoding"})


class Unprocessable(SwiftletError):
    status = 422
    title = "Unprocessable content"
    codes = frozenset(
        {
            "validation_failed",
            "input_too_long",
            "empty_input",
            "no_mask",
            "too_many_masks",
            "too_few_tokens",
            "answer_too_large",
            "model_not_loaded",
        }
    )


class TooManyRequests(SwiftletError):
    status = 429
    title = "Rate limit exceeded"
    codes = frozenset({"quota_exceeded"})
    retryable = True


class HeadersTooLarge(SwiftletError):
    status = 431
    title = "Request headers too large"
    codes = frozenset({"headers_too_large"})


class Internal(SwiftletError):
    status = 500
    title = "Internal server error"
    codes = frozenset({"internal", "invalid_engine_output", "tokenizer_failed"})


class Unavailable(SwiftletError):
    status = 503
    title = "Service unavailable"
    codes = frozenset({"overloaded", "draining", "engine_unavailable", "model_loading", "model_unavailable"})
    retryable = True


class DeadlineExceeded(SwiftletError):
    status = 504
    title = "Deadline exceeded"
    codes = frozenset({"deadline_exceeded"})
    retryable = True


def invalid_value(pointer: str, code: str, detail: str, limit: int | float | None = None) -> Unprocessable:
    """Returns the error of one invalid value in a request. `FieldError` describes the arguments, except `detail`."""
    return Unprocessable("validation_failed", detail, field_errors=[FieldError(pointer, code, limit)])


class DeadlineTooShort(SwiftletError):
    status = 504
    title = "Deadline too short"
    codes = frozenset({"deadline_too_short"})


def rate_limit_exceeded(wait_s: float, limit: str = "rate limit") -> TooManyRequests:
    """Returns the error of a request beyond a rate limit of its client, which admits the next one in `wait_s`."""
    detail = f"This client exceeds its {limit}. Retry after the time in the Retry-After header."
    return TooManyRequests("quota_exceeded", detail, retry_after=wait_s)


def draining() -> Unavailable:
    """Returns the error of a request that arrives during shutdown."""
    return Unavailable("draining", "The server is shutting down. Retry on another server.", retry_after=1.0)


def engine_unavailable() -> Unavailable:
    """Returns the error of a request that arrives while no engine is ready. The supervisor checks every second."""
    return Unavailable("engine_unavailable", "No engine is ready. Retry in one second.", retry_after=1.0)


def deadline_exceeded() -> DeadlineExceeded:
    """Returns the error of a request whose deadline has passed."""
    detail = "The deadline passed before the response was ready. Retry later, or with a longer X-Request-Timeout-Ms."
    return DeadlineExceeded("deadline_exceeded", detail)


def deadline_too_short(minimum_s: float) -> DeadlineTooShort:
    """Returns the error of a request that takes `minimum_s` seconds even alone, which is more than its timeout."""
    minimum_ms = math.ceil(1000 * minimum_s)
    detail = f"The request takes at least {minimum_ms} ms on this server. Send it with a longer X-Request-Timeout-Ms."
    return DeadlineTooShort("deadline_too_short", detail)


class SetupError(Exception):
    """Raised when the service cannot start. The message says what to change."""


def log_exception(log: logging.Logger, message: str, error: BaseException) -> None:
    """Logs an unexpected error with its type and stack frames, without its own message.

    The message of a third-party exception may quote its input, which can be a user's text.
    """
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s: %s\n%s", message, type(error).__name__, frames)
