"""Everything that can go wrong with a request, as one tree. Each error carries its own status and code.

    SwiftletError
    ├── InvalidRequest 400        bad_framing, invalid_json, invalid_utf8
    ├── Unauthorized 401          missing_key, bad_key
    ├── NotFound 404              unknown_route, unknown_model
    ├── MethodNotAllowed 405      method_not_allowed
    ├── ReceiveTimeout 408        receive_timeout
    ├── BodyTooLarge 413          body_too_large
    ├── UriTooLong 414            uri_too_long
    ├── UnsupportedMedia 415      unsupported_media_type, unsupported_encoding
    ├── Unprocessable 422         validation_failed, input_too_long, empty_input, no_mask, too_many_masks,
    │                             answer_too_large
    ├── TooManyRequests 429       quota_exceeded
    ├── HeadersTooLarge 431       headers_too_large
    ├── Internal 500              internal, invalid_engine_output
    ├── Unavailable 503           overloaded, draining, engine_unavailable
    └── DeadlineExceeded 504      deadline_exceeded

The code is the contract: it never changes meaning. No message ever holds any of the caller's text.

What is wrong with the installation rather than with a request is a `SetupError`; it ends the process.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a request body."""

    pointer: str  # JSON Pointer (RFC 6901) to the offending value
    code: str  # the rule that was broken
    limit: int | float | None = None  # the bound, where the rule has one


class SwiftletError(Exception):
    """The root: a status, a code from a closed list, and a sentence for a person."""

    status: ClassVar[int]
    title: ClassVar[str]
    codes: ClassVar[frozenset[str]]
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        faults: Sequence[Fault] = (),
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        assert code in self.codes, code  # noqa: S101  # a programming error, caught by the tests
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.faults = tuple(faults)
        self.retry_after = retry_after  # seconds
        self.headers = dict(headers or {})  # that the response shall have


class InvalidRequest(SwiftletError):
    status = 400
    title = "The request could not be read"
    codes = frozenset({"bad_framing", "invalid_json", "invalid_utf8"})


class Unauthorized(SwiftletError):
    status = 401
    title = "This request needs an API key"
    codes = frozenset({"missing_key", "bad_key"})


class NotFound(SwiftletError):
    status = 404
    title = "There is no such thing here"
    codes = frozenset({"unknown_route", "unknown_model"})


class MethodNotAllowed(SwiftletError):
    status = 405
    title = "This address does not take that method"
    codes = frozenset({"method_not_allowed"})


class ReceiveTimeout(SwiftletError):
    status = 408
    title = "The request did not arrive in time"
    codes = frozenset({"receive_timeout"})
    retryable = True


class BodyTooLarge(SwiftletError):
    status = 413
    title = "The request body is too large"
    codes = frozenset({"body_too_large"})


class UriTooLong(SwiftletError):
    status = 414
    title = "The address is too long"
    codes = frozenset({"uri_too_long"})


class UnsupportedMedia(SwiftletError):
    status = 415
    title = "The request body is of a kind that is not read here"
    codes = frozenset({"unsupported_media_type", "unsupported_encoding"})


class Unprocessable(SwiftletError):
    status = 422
    title = "The request was understood but cannot be answered"
    codes = frozenset(
        {"validation_failed", "input_too_long", "empty_input", "no_mask", "too_many_masks", "answer_too_large"}
    )


class TooManyRequests(SwiftletError):
    status = 429
    title = "This client sends more than its share"
    codes = frozenset({"quota_exceeded"})
    retryable = True


class HeadersTooLarge(SwiftletError):
    status = 431
    title = "The request's head is too large"
    codes = frozenset({"headers_too_large"})


class Internal(SwiftletError):
    status = 500
    title = "Something went wrong on the server"
    codes = frozenset({"internal", "invalid_engine_output"})


class Unavailable(SwiftletError):
    status = 503
    title = "The server cannot take this request now"
    codes = frozenset({"overloaded", "draining", "engine_unavailable"})
    retryable = True


class DeadlineExceeded(SwiftletError):
    status = 504
    title = "The answer was not ready within the deadline"
    codes = frozenset({"deadline_exceeded"})
    retryable = True


def draining() -> Unavailable:
    """Nothing new is taken."""
    return Unavailable("draining", "The server is shutting down.", retry_after=1.0)


def no_engine() -> Unavailable:
    """There is none that works; it is looked at again every second."""
    return Unavailable("engine_unavailable", "The engine does not work at the moment.", retry_after=1.0)


def too_late() -> DeadlineExceeded:
    """The caller's time is up."""
    return DeadlineExceeded("deadline_exceeded", "The answer was not ready within the deadline.")


class SetupError(Exception):
    """The service cannot be started as asked; the message is one sentence that says what to change."""


def report(log: logging.Logger, what: str, error: BaseException) -> None:
    """Logs an unexpected error by its type and its frames, but not its message.

    The message of somebody else's exception may quote what it was given, and that may be a user's text.
    """
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s: %s\n%s", what, type(error).__name__, frames)
