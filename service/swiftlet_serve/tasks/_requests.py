"""The parts that the requests and responses of the tasks share: models, the places of texts, and errors."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from swiftlet_models.artifact import Side
from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import FieldError, SwiftletError, Unprocessable
from swiftlet_serve.types.body_model import BodyModel

LEAST_ITEM_BYTES: Final = 24  # of a label, token or answer with its score, in a response
MAX_HIDDEN_NUMBERS: Final = 1 << 25  # of hidden states for a request: half of what a message to a front may hold
MAX_INPUTS: Final = 2048  # texts or questions in one request, as OpenAI allows: separate limits apply to the work
TRUNCATION: Final = "set truncation to true"
"""The remedy for a text that is too long, in errors. Other protocols name other fields."""

VISIBLE: Final = re.compile(
    r"[^\x00-\x20\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e\u2000-\u200f\u2028-\u202f"
    r"\u205f-\u2064\u2066-\u206f\u3000\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
"""A character that is neither a space nor in Unicode's categories of controls (Cc) and formats (Cf)."""

T = TypeVar("T")
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]


class NullIsDefault(BodyModel):
    """A model that reads null as the default, for every field that has one.

    In fields whose type includes None, null is a value. Fields without a default refuse null.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = super().__get_pydantic_core_schema__(source, handler)
        fields: Any = handler.resolve_ref_schema(schema)
        while "fields" not in fields:
            fields = fields["schema"]
        for name, field in fields["fields"].items():
            inner = field["schema"]
            if inner["type"] == "default" and inner["schema"]["type"] != "nullable":
                replace = partial(_replace_null, cls.model_fields[name])
                inner["schema"] = core_schema.no_info_before_validator_function(replace, inner["schema"])
        return schema


def _replace_null(field: FieldInfo, value: Any) -> Any:
    return field.get_default(call_default_factory=True, validated_data={}) if value is None else value


class Strict(NullIsDefault):
    """A model that converts no types and rejects unknown fields.

    `cache_strings` is off for values: by default pydantic keeps up to 16,384 of the short strings that it parses.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, cache_strings="keys")


class Options(Strict):
    """Options that Hugging Face clients send. They are accepted and have no effect."""

    use_cache: Annotated[bool | None, Field(description="Has no effect.")] = None
    use_gpu: Annotated[bool | None, Field(description="Has no effect.")] = None
    wait_for_model: Annotated[
        bool | None, Field(description="Has no effect: a request waits for its model as long as its deadline allows.")
    ] = None


class Cut(NamedTuple):
    """How a client of another protocol wants its long texts cut."""

    tokens: int | None = None
    """Most tokens of a sequence, special tokens included. None, or more than the model reads: the model's limit."""
    side: Side | None = None
    """The side on which a text loses tokens. None: the model's."""
    query_tokens: int | None = None
    """Most tokens of the query of a ranking, without special tokens. None: no limit."""
    document_tokens: int | None = None
    """Most tokens of each text to rank, without special tokens. None: no limit."""

    def most(self, max_tokens: int) -> int:
        """Returns the limit of a sequence, given the model's."""
        return max_tokens if self.tokens is None else min(self.tokens, max_tokens)

    def own_limits(self, *, is_query: bool, is_pair: bool) -> tuple[int | None, ...] | None:
        """Returns the own limit of each text of a ranking's sequence: a query, a text, or a pair. None: no limits."""
        own = self.query_tokens if is_query else self.document_tokens
        limits = (self.query_tokens, own) if is_pair else (own,)
        return limits if any(limits) else None


class Request(Strict):
    """The fields that the requests of all tasks share."""

    model: Annotated[
        str | None,
        Field(description="Name of a served model. Default: the default model of this task.", max_length=64),
    ] = None
    options: Annotated[Options | None, Field(description="Options of Hugging Face clients.")] = None
    partial: Annotated[
        bool,
        Field(
            description="If true, an error in one of several inputs fails that input only. If false, it fails the "
            "whole request. Has no effect on a request with one input."
        ),
    ] = False
    details: Annotated[
        bool,
        Field(
            description="If true, the response is an object: the answer, and details of how much of the texts was read."
        ),
    ] = False

    cut: ClassVar[Cut] = Cut()
    """How long texts are cut, if they are. It is no field, because only other protocols have it."""

    def cutting(self, cut: Cut) -> Self:
        """Returns a copy that cuts long texts in this way."""
        copy = self.model_copy()
        copy.__dict__["cut"] = cut  # a copy of the copy has it, too. A private attribute is read several times slower
        return copy


class TextsRequest(Request):
    """A request for one text or several."""

    inputs: Annotated[str | Texts, Field(description="A text, or a list of texts.")]


class Details(BaseModel):
    """How much of the texts of a request was read."""

    input_tokens: Annotated[
        int, Field(description="Tokens of all sequences before they were cut, special tokens included.")
    ]
    tokens_read: Annotated[int, Field(description="Tokens of all sequences that the model read.")]
    truncated: Annotated[
        list[str], Field(description="JSON Pointer of each text that was cut, such as /inputs/0, in order.")
    ]


class Failure(BaseModel):
    """The error of one input of a request with `partial`. It takes the place of the answer."""

    error: Annotated[str, Field(description="A sentence that describes the error.")]
    error_type: Annotated[str, Field(description="The same as code, for clients of text-embeddings-inference.")]
    code: Annotated[str, Field(description="The error code, as in problem details.")]


def failure(error: SwiftletError) -> Failure:
    """Returns the error of an input in a partial response."""
    return Failure(error=error.detail, error_type=error.code, code=error.code)


def characters(inputs: object) -> int:
    """Returns the total length of all texts of a request's inputs, in code points. A token id counts as one."""
    if isinstance(inputs, str):
        return len(inputs)
    if isinstance(inputs, BaseModel):
        return sum([characters(value) for value in vars(inputs).values() if value])
    if not isinstance(inputs, list):
        return isinstance(inputs, int)
    kinds = set(map(type, inputs))
    if kinds == {int}:  # in compiled code, as below: these lists are long
        return len(inputs)
    return sum(map(len if kinds == {str} else characters, inputs))


def texts(inputs: object) -> list[str]:
    """Returns all texts of a request's inputs."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, BaseModel):
        inputs = [value for value in vars(inputs).values() if value]
    return [text for value in inputs for text in texts(value)] if isinstance(inputs, list) else []


def listed(inputs: T | list[T]) -> list[T]:
    """Returns the inputs of a request as a list."""
    return inputs if isinstance(inputs, list) else [inputs]


class OneByOne:
    """How a task parts requests of several inputs, and what it answers to a single one."""

    def split(self, request: Any) -> list[Any]:
        """Returns one request for each input."""
        return [request.model_copy(update={"inputs": item}) for item in in_turns(listed(request.inputs))]

    def single(self, response: Any) -> Any:
        """Returns the response to the only input."""
        return response


def pointers(inputs: object) -> list[str]:
    """Returns the JSON Pointer of each input. A list is several inputs, anything else is one."""
    return [f"/inputs/{i}" for i in range(len(inputs))] if isinstance(inputs, list) else ["/inputs"]


def is_blank(text: str) -> bool:
    """Returns whether a text has nothing but spaces, control characters and invisible ones such as U+200B."""
    return VISIBLE.search(text) is None


def empty_input(pointer: str) -> Unprocessable:
    """Returns the error for a text without content."""
    detail = "The text is empty. Send a text that is not blank."
    return Unprocessable("empty_input", detail, field_errors=[FieldError(pointer, "empty_input")])


def input_too_long(pointer: str, detail: str, limit: int) -> Unprocessable:
    """Returns the error for an input that exceeds `limit`. `detail` names the unit of the limit."""
    return Unprocessable("input_too_long", detail, field_errors=[FieldError(pointer, "input_too_long", limit)])


def too_many_tokens(pointer: str, max_tokens: int, tokens: int) -> Unprocessable:
    """Returns the error for a text of so many tokens, which exceeds the limit while truncation is off."""
    detail = f"The text has {tokens} tokens, and {max_tokens} at most are read. Shorten it, or {TRUNCATION}."
    return input_too_long(pointer, detail, max_tokens)
