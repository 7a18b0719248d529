"""System One: typed questions about one text, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import FieldError, InvalidRequest, SwiftletError, Unprocessable
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts import model_pages
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation
from swiftlet_serve.http.dialect_parts.openai_format import ERROR_TYPES
from swiftlet_serve.http.dialect_parts.questions import (
    INLINE_BYTES,
    MAX_LEVELS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    Answer,
    Content,
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
from swiftlet_serve.http.wording import sentence
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry.request_record import RequestRecord


class Criteria(ForeignBody):
    """What yes and no mean."""

    true: Content | None = None
    false: Content | None = None


class Noul(ForeignBody):
    """Asks how likely yes is."""

    type: Literal["noul"]
    instructions: Content | None = None
    criteria: Criteria | None = None


class Options(ForeignBody):
    """Asks which of several options fits."""

    type: Literal["choice"]
    instructions: Content | None = None
    criteria: dict[str, Content | None] = Field(min_length=2, max_length=MAX_OPTIONS)


class Levels(ForeignBody):
    """Asks for a level on a scale."""

    type: Literal["score"]
    instructions: Content | None = None
    criteria: list[Content] = Field(min_length=2, max_length=MAX_LEVELS)


AnyQuestion = Annotated[Noul | Options | Levels, Field(discriminator="type")]


class SystemOneRequest(ForeignBody):
    """A System One request."""

    max_items: ClassVar[int] = 16_384

    model: str
    state: Content
    questions: dict[Name, AnyQuestion] = Field(min_length=1, max_length=MAX_QUESTIONS)
    truncation: bool = False


class SystemOneResponse(BaseModel):
    """A System One response, with the answers by the names of the questions."""

    model: str
    answers: dict[str, dict[str, Any]]
    usage: dict[str, int]


def decide(runtime: Runtime, request: Request) -> Translation:
    """Translates a System One request."""
    body = bodies.parse(SystemOneRequest, request.body)
    pipeline = runtime.catalog.find(body.model, request.version)
    own = enumerate(in_turns(body.questions.values()))
    questions = [_question(question, f"/questions/{i}") for i, question in own]
    respond = partial(_answers, body.questions)
    return ask(pipeline, text_of(body.state, "/state"), questions, "/state", respond, truncate=body.truncation)


def _question(question: Noul | Options | Levels, pointer: str) -> Question:
    """Raises Unprocessable if a content has a number that is not finite."""
    instructions = None if question.instructions is None else text_of(question.instructions, f"{pointer}/instructions")
    at = f"{pointer}/criteria"
    match question:
        case Noul():
            criteria = question.criteria or Criteria()
            sides = [(name, getattr(criteria, name)) for name in ("true", "false")]
            options = tuple(_option(name, side, f"{at}/{name}") for name, side in sides if side is not None)
            negated = [option.value for option in options] == ["false"]
            return Question("predicate", pointer, instructions, options, negated)
        case Options():
            options = tuple(
                _option(name, name if meaning is None else meaning, f"{at}/{i}")
                for i, (name, meaning) in enumerate(question.criteria.items())
            )
            return Question("choice", pointer, instructions, options)
        case Levels():
            texts = [text_of(criterion, f"{at}/{i}") for i, criterion in enumerate(question.criteria)]
            options = tuple(Option(text, text, f"{at}/{i}") for i, text in enumerate(texts))
            return Question("score", pointer, instructions, options)


def _option(value: str, content: Content, pointer: str) -> Option:
    return Option(value, text_of(content, pointer), pointer)


def _answers(
    questions: Mapping[str, Noul | Options | Levels], found: Sequence[Answer], record: RequestRecord
) -> dict[str, Any]:
    """Returns the response. The protocol has no refusals: a field of our own marks the answers that are none."""
    answers = {
        name: _answer(question, answer.probabilities) | ({"x_refused": True} if answer.refused else {})
        for (name, question), answer in zip(questions.items(), found, strict=True)
    }
    return {"answers": answers, "usage": {"input_tokens": record.tokens + record.kept_tokens, "output_tokens": 0}}


def _answer(question: Noul | Options | Levels, probabilities: Distribution) -> dict[str, Any]:
    match question:
        case Noul():
            return {"type": "noul", "noul": probabilities[0]}
        case Options():
            values = list(question.criteria)
            answer: dict[str, Any] = {"type": "choice", "choice": values[best(probabilities)]}
        case Levels():
            values = [str(i) for i in range(len(question.criteria))]
            legend = dict(zip(values, question.criteria, strict=True))
            answer = {"type": "score", "score": mean(probabilities), "legend": legend}
    probabilities_by_value = dict(zip(values, probabilities, strict=True))
    return answer | {"probabilities": probabilities_by_value, "confidence": confidence(probabilities)}


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error in System One's form. A body that is not JSON has the status of any invalid one."""
    if not isinstance(error, InvalidRequest | Unprocessable):
        kind = ERROR_TYPES.get(error.status, "invalid_request_error")
        about = {"error_type": kind, "message": sentence(error), "code": error.code}
        return JSONResponse({"detail": about}, error.status, problem_details.headers(error))
    first = error.field_errors[0] if error.field_errors else FieldError("", error.code)
    place = ["body", *(int(step) if step.isdigit() else step for step in first.pointer.split("/")[1:])]
    detail = [{"loc": place, "msg": sentence(error), "type": first.code}]
    return JSONResponse({"detail": detail}, Unprocessable.status, problem_details.headers(error))


OPERATIONS: Final = (
    Operation("/v1/systemone", "Decisions", decide, SystemOneRequest, SystemOneResponse, inline_bytes=INLINE_BYTES),
)
PAGES: Final = model_pages.PAGES
