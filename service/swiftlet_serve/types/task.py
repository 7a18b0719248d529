"""The protocol of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types.batch import Row

if TYPE_CHECKING:
    from pydantic import BaseModel  # not imported in a worker process, which needs no pydantic

RequestT = TypeVar("RequestT", bound="BaseModel")
EncodingT = TypeVar("EncodingT", bound=Encoding)


class Task(Protocol[RequestT, EncodingT]):
    """Translates a request into sequences, and their rows into a response. All methods are pure functions."""

    Request: type[RequestT]
    Response: Any  # the type that `decode` returns, for the OpenAPI document

    def encode(self, request: RequestT) -> list[EncodingT]:
        """Encodes a request into sequences.

        Raises:
            Unprocessable: the request cannot be answered.
        """
        ...

    def decode(self, request: RequestT, encodings: Sequence[EncodingT], rows: Sequence[Row]) -> object:
        """Returns the response as values for `json_text.write`. `rows[i]` belongs to `encodings[i]`."""
        ...

    def split(self, request: RequestT) -> list[RequestT]:
        """Returns one request for each input.

        Raises:
            Unprocessable: the request is invalid as a whole.
        """
        ...

    def single(self, response: Any) -> object:
        """Returns the part of a one-input response that represents the input in a response to several inputs."""
        ...
