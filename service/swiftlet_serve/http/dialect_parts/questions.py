"""Typed questions about one text, and how models answer them.

A zero-shot model, or an embedding model, answers any question: each statement (the instructions, or the instructions
followed by an option) is a hypothesis about the text. Its log-odds weigh entailment against contradiction. A classifier
answers a choice among its own labels, and the predicates and scores that its manifest maps to labels. Both divide
log-odds by the temperature that was fitted for the model and the type of question. Questions that a model cannot answer
are refused, never guessed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from swiftlet_models import calibration
from swiftlet_models.artifact import Decisions, Fit, Manifest
from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import NotFound, Unprocessable, invalid_value
from swiftlet_serve.http.dialect_parts.dialect import translation
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.wording import Wording, renamed
from swiftlet_serve.inference.pipeline import MAX_SEQUENCES, Pipeline
from swiftlet_serve.tasks._requests import is_blank
from swiftlet_serve.telemetry.request_record import RequestRecord

MAX_QUESTIONS: Final = 400
MAX_OPTIONS: Final = 255
"""Options of a choice."""
MAX_LEVELS: Final = 10
"""Levels of a score."""

Name = Annotated[str, Field(max_length=256)]
"""The name of a question."""
Content = str | dict[str, Any] | list[Any]
"""A text, or what is read as its JSON."""


class Option(NamedTuple):
    """A choice, or a level of a score."""

    value: str
    """Its name, which is a label of a classifier."""
    text: str
    """The meaning, which completes a hypothesis."""
    pointer: str
    """The JSON Pointer of the option, for errors."""


INLINE_BYTES: Final = 1 << 12  # of a body that the event loop translates, which takes 2 ms for short questions


@dataclass(frozen=True)
class Question:
    """A question about a text. The options of a predicate, which may be none, say what yes means and what no does."""

    kind: Literal["predicate", "choice", "score"]
    pointer: str
    """The JSON Pointer of the question, for errors."""
    instructions: str | None
    """None for a question whose options say everything."""
    options: tuple[Option, ...] = ()
    negated: bool = False
    """Whether the only option of a predicate is what no means."""

    @cached_property
    def statements(self) -> tuple[str, ...]:
        """The statements whose likelihood a zero-shot or embedding model estimates."""
        instructions = self.instructions or ""
        return tuple(f"{instructions} {option.text}".strip() for option in self.options) or (instructions,)


Distribution = list[float]
"""The probabilities of a question's options, in order. Of a predicate: of yes."""


class Answer(NamedTuple):
    """The answer to a question."""

    probabilities: Distribution
    refused: bool
    """Whether the model is less sure of its best answer than its manifest asks for."""


Respond = Callable[[Sequence[Answer], RequestRecord], Mapping[str, Any]]
"""Returns the response to questions, without the name of the model."""


def ask(
    pipeline: Pipeline, text: str, questions: Sequence[Question], at: str, respond: Respond, *, truncate: bool
) -> Translation:
    """Puts questions to a model. All statements become one request, which the engine computes together.

    Args:
        pipeline: the pipeline of the model.
        text: the text.
        questions: the questions.
        at: the JSON Pointer of the text, for errors.
        respond: returns the response.
        truncate: whether a text that is too long is cut.

    Raises:
        NotFound: the model answers no questions.
        Unprocessable: a question is blank, or the model cannot answer it.
    """
    for question in in_turns(questions):
        _check_content(question)
    manifest = pipeline.model.manifest
    known = manifest.decisions or Decisions()
    if "zero-shot" in pipeline.model.task_names:
        pipeline = pipeline.for_task("zero-shot")
        places = {
            statement: option.pointer if option else f"{question.pointer}/instructions"
            for question in reversed(questions)
            for statement, option in zip(question.statements, question.options or (None,), strict=True)
        }
        statements = list(dict.fromkeys(statement for question in questions for statement in question.statements))
        if len(statements) > MAX_SEQUENCES:
            detail = f"The questions have more than {MAX_SEQUENCES} options. Send fewer of them in one request."
            raise invalid_value("/questions", "too_many_options", detail, MAX_SEQUENCES)
        parameters: dict[str, Any] = {
            "candidate_labels": statements,
            "hypothesis_template": "{}",
            "multi_label": True,
            "truncation": truncate,
        }
        labels = {f"/parameters/candidate_labels/{i}": places[statement] for i, statement in enumerate(statements)}

        def read(answer: Any) -> list[Distribution]:
            log_odds = {entry["label"]: calibration.log_odds(entry["score"]) for entry in answer}
            return [_weighed(question, log_odds, known.fit(question.kind)) for question in in_turns(questions)]

    elif manifest.task == "classify":
        readers = [_reader(manifest, known, question) for question in questions]
        parameters, labels = {"function_to_apply": "none", "truncation": truncate}, {}

        def read(answer: Any) -> list[Distribution]:
            logits = {entry["label"]: entry["score"] for entry in answer[0]}
            return [reader(logits) for reader in readers]

    else:
        raise NotFound("unknown_model", "No model of this name answers questions. See /models for the served models.")
    names = {"/inputs": at, "/parameters/truncation": "/truncation", "/parameters": "/questions"}

    def render(answer: Any, record: RequestRecord) -> TaskResponse:
        answers = [
            Answer(probabilities, certainty(probabilities) < known.fit(question.kind).threshold)
            for question, probabilities in zip(questions, read(answer), strict=True)
        ]
        return TaskResponse.of({"model": manifest.name, **respond(answers, record)})

    return translation(pipeline, {"inputs": text, "parameters": parameters}, render, Wording(renamed(labels | names)))


def text_of(content: Content, at: str) -> str:
    """Returns a content as a text, which is empty if the content is.

    Raises:
        Unprocessable: the content, at this JSON Pointer, has a number that is not finite.
    """
    if isinstance(content, str):
        return content
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False) if content else ""
    except ValueError:
        detail = "A number is not finite or too large. Send a finite number."
        raise invalid_value(at, "finite_number", detail) from None


def _check_content(question: Question) -> None:
    """Raises Unprocessable if the instructions or an option are blank."""
    if is_blank(question.instructions or "") and (question.instructions is not None or not question.options):
        detail = "The instructions of a question are empty. Write what to decide about the text."
        raise invalid_value(f"{question.pointer}/instructions", "empty", detail)
    for option in question.options:
        if is_blank(option.text):
            raise invalid_value(option.pointer, "empty", "An option of a question is empty. Write what it means.")


def _weighed(question: Question, log_odds: Mapping[str, float], fit: Fit) -> Distribution:
    """Returns the answer to a question, given the log-odds of its statements.

    Options of the same statement mean one event: they share its probability.
    """
    times = Counter(question.statements)
    odds = [log_odds[statement] for statement in times]
    if len(question.options) < 2:
        yes = calibration.sigmoid(odds[0] + fit.offset, fit.temperature)
        return [1 - yes if question.negated else yes]
    of_events = dict(zip(times, calibration.softmax(odds, fit.temperature).tolist(), strict=True))
    return [of_events[statement] / times[statement] for statement in question.statements]


def certainty(probabilities: Distribution) -> float:
    """Returns the probability of the best answer. Of a predicate, that is yes or no."""
    return max(probabilities) if len(probabilities) > 1 else max(probabilities[0], 1 - probabilities[0])


def confidence(probabilities: Distribution) -> float:
    """Returns how peaked a distribution is: 0 if all options are equally likely, 1 if one is certain."""
    options = len(probabilities)
    return min(1.0, max(0.0, (options * max(probabilities) - 1) / (options - 1)))


def best(probabilities: Distribution) -> int:
    """Returns the position of the most likely option."""
    return probabilities.index(max(probabilities))


def mean(probabilities: Distribution) -> float:
    """Returns the expected level of a score, counted from 0."""
    return sum(i * probability for i, probability in enumerate(probabilities))


def _reader(manifest: Manifest, known: Decisions, question: Question) -> Callable[[Mapping[str, float]], Distribution]:
    """Returns the function from the logits of a classifier to the answer of a question.

    Raises:
        Unprocessable: the classifier cannot answer the question.
    """
    fit = known.fit(question.kind)
    exclusive = manifest.problem == "single_label" and len(manifest.labels) > 1
    if manifest.problem == "regression":
        raise _refusal(question, "The model computes a number and has no labels. Ask a zero-shot model.")
    if question.kind == "predicate":
        label = known.predicates.get(question.instructions or "")
        if label is None:
            raise _refusal(question, "The model's manifest maps no label to this predicate. Ask a zero-shot model.")
        if not exclusive:
            return lambda logits: [calibration.sigmoid(logits[label] + fit.offset, fit.temperature)]
        position = manifest.labels.index(label)
        return lambda logits: [
            float(calibration.softmax([logits[name] for name in manifest.labels], fit.temperature)[position])
        ]
    if not exclusive:
        raise _refusal(question, "The labels of the model do not exclude each other. Ask predicates only.")
    if question.kind == "choice":
        chosen: Sequence[str] = [option.value for option in question.options]
        if not set(chosen) <= set(manifest.labels):
            raise _refusal(
                question, "A choice is not a label of the model. Use the labels in /models, or ask a zero-shot model."
            )
    else:
        chosen = known.scores.get(question.instructions or "", ())
        if len(chosen) != len(question.options):
            detail = "The model's manifest does not map this score to as many labels. Ask a zero-shot model."
            raise _refusal(question, detail)

    def read(logits: Mapping[str, float]) -> Distribution:
        probabilities: Distribution = calibration.softmax([logits[label] for label in chosen], fit.temperature).tolist()
        return probabilities

    return read


def _refusal(question: Question, detail: str) -> Unprocessable:
    return invalid_value(question.pointer, "unsupported", detail)
