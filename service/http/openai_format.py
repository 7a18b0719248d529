"""Parts of OpenAI's format that several dialects share: the count of tokens, and errors."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from swiftlet_serve.service.errors import SwiftletError
from swiftlet_serve.service.http import problem_details
from swiftlet_serve.service.http.dialect import error_sentence
from swiftlet_serve.service.telemetry.request_record import RequestRecord

ERROR_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Usage(BaseModel):
    """The tokens of a request."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, record: RequestRecord) -> Usage:
        return cls(prompt_tokens=record.tokens, total_tokens=record.tokens)


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error in OpenAI's form. `param` is the JSON Pointer of the first invalid value."""
    body = {
        "message": error_sentence(error),
        "type": ERROR_TYPES.get(error.status, "invalid_request_error"),
        "param": error.field_errors[0].pointer if error.field_errors else None,
        "code": error.code,
    }
    return JSONResponse({"error": body}, error.status, problem_details.headers(error))
