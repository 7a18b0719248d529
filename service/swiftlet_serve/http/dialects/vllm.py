"""Tokens as vLLM serves them: `prompt` in, `tokens` out, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from pydantic import BaseModel, Field

from swiftlet_serve.http.dialect_parts import openai_format, tokenization
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import Translation, dump
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import Wording, renamed
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks.embed import MAX_ITEMS, TokenIds

FIELDS: Final = frozenset({"prompt", "messages"})


class TokenizeRequest(ForeignBody):
    """A request of vLLM for the tokens of a text. Messages of a chat are not read."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeResponse(BaseModel):
    """The tokens of a text, and the most that the model reads."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(ForeignBody):
    """A request of vLLM for the text of token ids."""

    max_items: ClassVar[int] = MAX_ITEMS

    model: str | None = None
    tokens: TokenIds = Field(min_length=1)


class DetokenizeResponse(BaseModel):
    """The text of token ids, special tokens included."""

    prompt: str


def tokenize(runtime: Runtime, request: Request) -> Translation:
    """Translates a request for tokens."""
    body = bodies.parse(TokenizeRequest, request.body)
    pipeline = runtime.catalog.find(body.model, request.version)
    tokenizer, max_tokens = pipeline.model.tokenizer, pipeline.model.manifest.max_tokens

    def write(texts: Iterator[tokenization.Parts]) -> bytes:
        ids = [token["id"] for part in next(texts) for token in part]
        names = dump([tokenizer.token(number) for number in ids]) if body.return_token_strs else b"null"
        form = b'{"count":%d,"max_model_len":%d,"tokens":%b,"token_strs":%b}'
        return form % (len(ids), max_tokens, dump(ids), names)

    own = tokenization.TokenizeRequest.model_construct(inputs=[body.prompt], special_tokens=body.add_special_tokens)
    return tokenization.translation(
        pipeline, tokenization.Tokenize(tokenizer), own, write, Wording(renamed({"/inputs": "/prompt"}))
    )


def detokenize(runtime: Runtime, request: Request) -> Translation:
    """Translates a request for the text of token ids."""
    body = bodies.parse(DetokenizeRequest, request.body)
    pipeline = runtime.catalog.find(body.model, request.version)

    def write(texts: list[str]) -> bytes:
        return dump({"prompt": texts[0]})

    own = tokenization.DetokenizeRequest.model_construct(inputs=[body.tokens], skip_special_tokens=False)
    task = tokenization.Detokenize(pipeline.model.tokenizer)
    return tokenization.translation(pipeline, task, own, write, Wording(renamed({"/inputs/0": "/tokens"})))


render_error = openai_format.render_error

OPERATIONS: Final = (
    Operation("/tokenize", "Tokens of a text, as vLLM", tokenize, TokenizeRequest, TokenizeResponse, fields=FIELDS),
    Operation("/detokenize", "Text of token ids", detokenize, DetokenizeRequest, DetokenizeResponse),
)
