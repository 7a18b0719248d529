"""Parts of OpenAI's format that several dialects share: the count of tokens, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_models.artifact import Side
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody
from swiftlet_serve.http.wording import sentence
from swiftlet_serve.tasks._requests import Cut
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
SIDES: Final[Mapping[object, Side]] = {"START": "left", "END": "right"}  # that Cohere's and NVIDIA's `truncate` cuts
LIMIT: Final = {"/parameters/tokens": "/truncate_prompt_tokens"}  # the limit's name in `TruncatingRequest`, for errors


class TruncatingRequest(ForeignBody):
    """The fields of a request that choose whether long texts are truncated, and how.

    vLLM, Voyage (`truncation`), and Cohere, NVIDIA and Jina (`truncate`) have one each. The first that is there counts.
    """

    truncation: bool | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1)
    truncation_side: Side | None = None

    def truncates(self, *, default: bool) -> bool:
        """Returns whether long texts are cut."""
        if self.truncate_prompt_tokens is not None:
            return True
        if self.truncation is not None:
            return self.truncation
        return default if self.truncate is None else self.truncate not in (False, "NONE")

    def cut(self) -> Cut:
        """Returns how they are cut."""
        tokens = self.truncate_prompt_tokens
        return Cut(None if tokens == -1 else tokens, SIDES.get(self.truncate, self.truncation_side))


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
