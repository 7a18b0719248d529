"""Parts of OpenAI's format that several dialects share: the count of tokens, and errors."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_serve.errors import SwiftletError, invalid_value
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody
from swiftlet_serve.http.wording import sentence
from swiftlet_serve.telemetry.request_record import RequestRecord

ERROR_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}


TRUNCATION: Final = "set truncate_prompt_tokens to -1"


class TruncatingRequest(ForeignBody):
    """The fields of a request that choose whether long texts are truncated."""

    truncation: bool | None = None
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1)

    def truncates(self, limit: int, *, default: bool) -> bool:
        """Returns whether texts are cut at the model's limit of tokens.

        Raises:
            Unprocessable: texts are to be cut before it.
        """
        if self.truncate_prompt_tokens is None:
            return default if self.truncation is None else self.truncation
        if 0 <= self.truncate_prompt_tokens < limit:
            detail = f"The model truncates texts at {limit} tokens only. Set truncate_prompt_tokens to -1, or omit it."
            raise invalid_value("/truncate_prompt_tokens", "unsupported", detail, limit)
        return True


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
        "message": sentence(error),
        "type": ERROR_TYPES.get(error.status, "invalid_request_error"),
        "param": error.field_errors[0].pointer if error.field_errors else None,
        "code": error.code,
    }
    return JSONResponse({"error": body}, error.status, problem_details.headers(error))
