"""Decisions: typed questions about one text, as OpenAI asks them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr

from swiftlet_serve.errors import invalid_value
from swiftlet_serve.http.dialect_parts import openai_format
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation
from swiftlet_serve.http.dialect_parts.questions import (
    INLINE_BYTES,
    MAX_LEVELS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    Answer,
    Distribution,
    Name,
    Option,
    Question,
    ask,
    best,
    confidence,
    mean,
    text_of,
)
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry.request_record import RequestRecord

Value = StrictStr | StrictBool


class Part(ForeignBody):
    """A part of a message. Only texts and JSON are read."""

    type: str
    text: str | None = None
    data: Any = None


Texts = str | list[Part]


class Message(ForeignBody):
    """A message with a text."""

    content: Texts


class Predicate(ForeignBody):
    """Asks how likely a statement is."""

    type: Literal["predicate"]
    instructions: Texts
    name: Name | None = None


class Choice(ForeignBody):
    """An option of a choice."""

    value: Value
    description: str | None = None


class ChoiceQuestion(ForeignBody):
    """Asks which of several options fits."""

    type: Literal["choice"]
    instructions: Texts
    choices: list[Choice] = Field(min_length=2, max_length=MAX_OPTIONS)
    name: Name | None = None


class Level(ForeignBody):
    """A level of a score."""

    label: str
    description: str | None = None


class ScoreQuestion(ForeignBody):
    """Asks for a level on a scale."""

    type: Literal["score"]
    instructions: Texts
    levels: list[Level] = Field(min_length=2, max_length=MAX_LEVELS)
    name: Name | None = None


AnyQuestion = Annotated[Predicate | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionsRequest(ForeignBody):
    """A decisions request."""

    max_items: ClassVar[int] = 16_384

    model: str
    input: str | list[Message]
    questions: list[AnyQuestion] = Field(min_length=1, max_length=MAX_QUESTIONS)
    truncation: bool = False


class DecisionsResponse(BaseModel):
    """A decisions response, with one answer for each question."""

    model: str
    answers: list[dict[str, Any]]
    usage: dict[str, Any]


def decide(runtime: Runtime, request: Request) -> Translation:
    """Translates a decisions request."""
    body = bodies.parse(DecisionsRequest, request.body)
    pipeline = runtime.catalog.find(body.model, request.version)
    text = input_text(body.input)
    questions = [_question(question, f"/questions/{i}") for i, question in enumerate(body.questions)]
    return ask(pipeline, text, questions, "/input", partial(_decisions, body.questions), truncate=body.truncation)


def input_text(content: str | Sequence[Message]) -> str:
    """Returns the text of an input: of messages, their texts, one per line.

    Raises:
        Unprocessable: a part of a message is neither a text nor JSON.
    """
    if isinstance(content, str):
        return content
    return "\n".join(_text(message.content, f"/input/{i}/content") for i, message in enumerate(content))


def _text(content: Texts, pointer: str) -> str:
    """Returns the text of a content.

    Raises:
        Unprocessable: a part is neither a text nor JSON.
    """
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{pointer}/{i}") for i, part in enumerate(content))


def _part(part: Part, pointer: str) -> str:
    """Raises Unprocessable if a part is neither a text nor JSON."""
    if part.type == "input_json" and isinstance(part.data, dict | list):
        return text_of(part.data, f"{pointer}/data")
    if part.text is None:
        detail = "A part of the content is neither a text nor JSON. Send these only."
        raise invalid_value(pointer, "unsupported", detail)
    return part.text


def _question(question: Predicate | ChoiceQuestion | ScoreQuestion, pointer: str) -> Question:
    """Raises Unprocessable if two options have the same value."""
    instructions = _text(question.instructions, f"{pointer}/instructions")
    match question:
        case Predicate():
            return Question("predicate", pointer, instructions)
        case ChoiceQuestion():
            if len({(type(choice.value), choice.value) for choice in question.choices}) < len(question.choices):
                detail = "Two choices of a question have the same value. Give each its own."
                raise invalid_value(f"{pointer}/choices", "duplicate", detail)
            options = [
                Option(_name(choice.value), choice.description or _name(choice.value), f"{pointer}/choices/{i}")
                for i, choice in enumerate(question.choices)
            ]
            return Question("choice", pointer, instructions, tuple(options))
        case ScoreQuestion():
            levels = [
                Option(level.label, level.description or level.label, f"{pointer}/levels/{i}")
                for i, level in enumerate(question.levels)
            ]
            return Question("score", pointer, instructions, tuple(levels))


def _name(value: Value) -> str:
    return value if isinstance(value, str) else ("yes" if value else "no")


def _decisions(
    questions: Sequence[Predicate | ChoiceQuestion | ScoreQuestion],
    found: Sequence[Answer],
    record: RequestRecord,
) -> dict[str, Any]:
    answers = [
        {"type": "refusal", "name": question.name} if answer.refused else _decision(question, answer.probabilities)
        for question, answer in zip(questions, found, strict=True)
    ]
    tokens = record.tokens + record.kept_tokens
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": record.kept_tokens},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
    }
    return {"answers": answers, "usage": usage}


def _decision(question: Predicate | ChoiceQuestion | ScoreQuestion, probabilities: Distribution) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": question.type, "name": question.name}
    match question:
        case Predicate():
            return answer | {"probability": probabilities[0]}
        case ChoiceQuestion():
            options = [
                {"value": choice.value, "probability": probability}
                for choice, probability in zip(question.choices, probabilities, strict=True)
            ]
            answer |= {"choice": question.choices[best(probabilities)].value}
        case ScoreQuestion():
            options = [
                {"label": level.label, "value": i, "probability": probability}
                for i, (level, probability) in enumerate(zip(question.levels, probabilities, strict=True))
            ]
            answer |= {"score": mean(probabilities)}
    return answer | {"confidence": confidence(probabilities), "probabilities": options}


render_error = openai_format.render_error

OPERATIONS: Final = (
    Operation("/v1/decisions", "Decisions", decide, DecisionsRequest, DecisionsResponse, inline_bytes=INLINE_BYTES),
)
