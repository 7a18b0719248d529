"""Decisions: typed questions about one text, as OpenAI (`/v1/decisions`) and System One (`/v1/systemone`) ask them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr

from swiftlet_serve.errors import invalid_value
from swiftlet_serve.http.dialect_parts import openai_format
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation, Page, translation
from swiftlet_serve.http.dialect_parts.questions import Distribution, Inquiry, Option, Question, ask, confidence
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry.request_record import RequestRecord

MAX_QUESTIONS: Final = 400
MAX_CHOICES: Final = 255
MAX_LEVELS: Final = 10

Value = StrictStr | StrictBool
Name = Annotated[str, Field(max_length=256)]
Statement = Annotated[str, Field(min_length=1)]


class Part(ForeignBody):
    """A part of a message. Only texts are read."""

    type: str
    text: str | None = None


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
    choices: list[Choice] = Field(min_length=2, max_length=MAX_CHOICES)
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
    """A decisions request of OpenAI."""

    max_items: ClassVar[int] = 16_384

    model: str
    input: str | list[Message]
    questions: list[AnyQuestion] = Field(min_length=1, max_length=MAX_QUESTIONS)
    truncation: bool = False


class DecisionsResponse(BaseModel):
    """A decisions response of OpenAI, with one answer for each question."""

    model: str
    answers: list[dict[str, Any]]
    usage: dict[str, Any]


class Criteria(ForeignBody):
    """What yes and no mean."""

    true: str
    false: str


class Noul(ForeignBody):
    """Asks how likely yes is."""

    type: Literal["noul"]
    instructions: Statement
    criteria: Criteria | None = None


class Options(ForeignBody):
    """Asks which of several options fits."""

    type: Literal["choice"]
    instructions: Statement
    criteria: dict[str, str | None] = Field(min_length=2, max_length=MAX_CHOICES)


class Levels(ForeignBody):
    """Asks for a level on a scale."""

    type: Literal["score"]
    instructions: Statement
    criteria: list[str] = Field(min_length=2, max_length=MAX_LEVELS)


AnyCriteria = Annotated[Noul | Options | Levels, Field(discriminator="type")]


class SystemOneRequest(ForeignBody):
    """A System One request."""

    model: str
    state: Any
    questions: dict[Name, AnyCriteria] = Field(min_length=1, max_length=MAX_QUESTIONS)
    truncation: bool = False


class SystemOneResponse(BaseModel):
    """A System One response, with the answers by the names of the questions."""

    model: str
    answers: dict[str, dict[str, Any]]
    usage: dict[str, int]


def decide(runtime: Runtime, request: Request) -> Translation:
    """Translates a decisions request of OpenAI."""
    body = bodies.parse(DecisionsRequest, request.body)
    pipeline = runtime.catalog.find(body.model, request.version)
    text = body.input if isinstance(body.input, str) else _conversation(body.input)
    questions = [_question(question, f"/questions/{i}") for i, question in enumerate(body.questions)]
    return _translation(pipeline, text, questions, "/input", body, partial(_decisions, body.questions))


def decide_system_one(runtime: Runtime, request: Request) -> Translation:
    """Translates a System One request."""
    body = bodies.parse(SystemOneRequest, request.body)
    pipeline = runtime.catalog.find(body.model, request.version)
    text = body.state if isinstance(body.state, str) else json.dumps(body.state, ensure_ascii=False)
    questions = [_criteria(question, f"/questions/{i}") for i, question in enumerate(body.questions.values())]
    return _translation(pipeline, text, questions, "/state", body, partial(_answers, body.questions))


def _translation(
    pipeline: Pipeline,
    text: str,
    questions: Sequence[Question],
    at: str,
    body: DecisionsRequest | SystemOneRequest,
    respond: Callable[[Sequence[Distribution], RequestRecord], Mapping[str, Any]],
) -> Translation:
    inquiry: Inquiry = ask(pipeline, text, questions, at, truncate=body.truncation)

    def render(answer: Any, record: RequestRecord) -> TaskResponse:
        return TaskResponse.of({"model": pipeline.model.manifest.name, **respond(inquiry.read(answer), record)})

    return translation(inquiry.pipeline, inquiry.fields, render, inquiry.wording)


def _conversation(messages: Sequence[Message]) -> str:
    """Returns the texts of messages, one per line."""
    return "\n".join(_text(message.content, f"/input/{i}/content") for i, message in enumerate(messages))


def _text(content: Texts, pointer: str) -> str:
    """Returns the text of a content.

    Raises:
        Unprocessable: a part is not a text.
    """
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.text is None:
            detail = "A part of the content is not a text. Send texts only."
            raise invalid_value(f"{pointer}/{i}", "unsupported", detail)
    return "\n".join(part.text for part in content if part.text is not None)


def _question(question: Predicate | ChoiceQuestion | ScoreQuestion, pointer: str) -> Question:
    """Raises Unprocessable if two options have the same value."""
    instructions = _text(question.instructions, f"{pointer}/instructions")
    match question:
        case Predicate():
            return Question("predicate", pointer, instructions)
        case ChoiceQuestion():
            if len({(type(choice.value), choice.value) for choice in question.choices}) < len(question.choices):
                _refuse(
                    f"{pointer}/choices",
                    "duplicate",
                    "Two choices of a question have the same value. Give each its own.",
                )
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


def _criteria(question: Noul | Options | Levels, pointer: str) -> Question:
    match question:
        case Noul(criteria=criteria):
            at = f"{pointer}/criteria"
            named = criteria and (("true", criteria.true), ("false", criteria.false))
            options = tuple(Option(name, text, f"{at}/{name}") for name, text in named or ())
            return Question("predicate", pointer, question.instructions, options)
        case Options():
            choices = enumerate(question.criteria.items())
            options = tuple(Option(value, text or value, f"{pointer}/criteria/{i}") for i, (value, text) in choices)
            return Question("choice", pointer, question.instructions, options)
        case Levels():
            levels = enumerate(question.criteria)
            options = tuple(Option(label, label, f"{pointer}/criteria/{i}") for i, label in levels)
            return Question("score", pointer, question.instructions, options)


def _refuse(pointer: str, code: str, detail: str) -> None:
    raise invalid_value(pointer, code, detail)


def _decisions(
    questions: Sequence[Predicate | ChoiceQuestion | ScoreQuestion],
    distributions: Sequence[Distribution],
    record: RequestRecord,
) -> dict[str, Any]:
    answers = [
        _decision(question, distribution) for question, distribution in zip(questions, distributions, strict=True)
    ]
    usage = {
        "input_tokens": record.tokens,
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": record.tokens,
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
            answer |= {"choice": question.choices[_best(probabilities)].value}
        case ScoreQuestion():
            options = [
                {"label": level.label, "value": i, "probability": probability}
                for i, (level, probability) in enumerate(zip(question.levels, probabilities, strict=True))
            ]
            answer |= {"score": _mean(probabilities)}
    return answer | {"confidence": confidence(probabilities), "probabilities": options}


def _answers(
    questions: Mapping[str, Noul | Options | Levels], distributions: Sequence[Distribution], record: RequestRecord
) -> dict[str, Any]:
    answers = {
        name: _answer(question, distribution)
        for (name, question), distribution in zip(questions.items(), distributions, strict=True)
    }
    return {"answers": answers, "usage": {"input_tokens": record.tokens, "output_tokens": 0}}


def _answer(question: Noul | Options | Levels, probabilities: Distribution) -> dict[str, Any]:
    match question:
        case Noul():
            return {"type": "noul", "noul": probabilities[0]}
        case Options():
            values = list(question.criteria)
            answer: dict[str, Any] = {"type": "choice", "choice": values[_best(probabilities)]}
        case Levels():
            values = [str(i) for i in range(len(question.criteria))]
            legend = dict(zip(values, question.criteria, strict=True))
            answer = {"type": "score", "score": _mean(probabilities), "legend": legend}
    probabilities_by_value = dict(zip(values, probabilities, strict=True))
    return answer | {"probabilities": probabilities_by_value, "confidence": confidence(probabilities)}


def _best(probabilities: Distribution) -> int:
    return probabilities.index(max(probabilities))


def _mean(probabilities: Distribution) -> float:
    """Returns the expected level."""
    return sum(i * probability for i, probability in enumerate(probabilities))


render_error = openai_format.render_error

OPERATIONS: Final = (
    Operation("/v1/decisions", "Decisions", decide, DecisionsRequest, DecisionsResponse),
    Operation("/v1/systemone", "Decisions, as System One", decide_system_one, SystemOneRequest, SystemOneResponse),
)
PAGES: Final[tuple[Page, ...]] = ()
