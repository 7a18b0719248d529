"""Typed questions about one text, and how models answer them.

A zero-shot model, or an embedding model, answers any question: each statement (the instructions, or the instructions
followed by an option) is a hypothesis about the text. Its log-odds weigh entailment against contradiction. A classifier
answers a choice among its own labels, and the predicates and scores that its manifest maps to labels. Both divide
log-odds by the temperature that was fitted for the model. Questions that a model cannot answer are refused, never
guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from swiftlet_models import calibration
from swiftlet_models.artifact import Decisions, Manifest
from swiftlet_serve.errors import NotFound, Unprocessable, invalid_value
from swiftlet_serve.http.wording import Wording, renamed
from swiftlet_serve.inference.pipeline import MAX_SEQUENCES, Pipeline
from swiftlet_serve.tasks._requests import is_blank


class Option(NamedTuple):
    """A choice, or a level of a score."""

    value: str
    """Its name, which is a label of a classifier."""
    text: str
    """The meaning, which completes a hypothesis."""
    pointer: str
    """The JSON Pointer of the option, for errors."""


@dataclass(frozen=True)
class Question:
    """A question about a text. A predicate has no options."""

    kind: Literal["predicate", "choice", "score"]
    pointer: str
    """The JSON Pointer of the question, for errors."""
    instructions: str
    options: tuple[Option, ...] = ()

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements whose likelihood a zero-shot or embedding model estimates."""
        if not self.options:
            return (self.instructions,)
        return tuple(f"{self.instructions} {option.text}".strip() for option in self.options)


Distribution = list[float]
"""The probabilities of a question's options, in order. Of a predicate: of yes."""


class Inquiry(NamedTuple):
    """A request of the task that answers questions, and how its answer is read."""

    pipeline: Pipeline
    """The pipeline of the task that answers."""
    fields: Mapping[str, Any]
    """The fields of the task's request."""
    wording: Wording
    """Puts errors of this request in the terms of the questions."""
    read: Callable[[Any], list[Distribution]]
    """Returns one distribution for each question, given the task's answer."""


def ask(pipeline: Pipeline, text: str, questions: Sequence[Question], at: str, *, truncate: bool) -> Inquiry:
    """Puts questions to a model. All statements become one request, which the engine computes together.

    Args:
        pipeline: the pipeline of the model.
        text: the text.
        questions: the questions.
        at: the JSON Pointer of the text, for errors.
        truncate: whether a text that is too long is cut.

    Raises:
        NotFound: the model answers no questions.
        Unprocessable: a question is blank, or the model cannot answer it.
    """
    for question in questions:
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
            return [
                distribution([log_odds[statement] for statement in question.statements], known.temperature)
                for question in questions
            ]

    elif manifest.task == "classify":
        readers = [_reader(manifest, known, question) for question in questions]
        parameters, labels = {"function_to_apply": "none", "truncation": truncate}, {}

        def read(answer: Any) -> list[Distribution]:
            logits = {entry["label"]: entry["score"] for entry in answer[0]}
            return [reader(logits) for reader in readers]

    else:
        raise NotFound("unknown_model", "No model of this name answers questions. See /models for the served models.")
    names = {"/inputs": at, "/parameters/truncation": "/truncation", "/parameters": "/questions"}
    wording = Wording(renamed(labels | names))
    return Inquiry(pipeline, {"inputs": text, "parameters": parameters}, wording, read)


def _check_content(question: Question) -> None:
    """Raises Unprocessable if the instructions or an option are blank."""
    if is_blank(question.instructions):
        detail = "The instructions of a question are empty. Write what to decide about the text."
        raise invalid_value(f"{question.pointer}/instructions", "empty", detail)
    for option in question.options:
        if is_blank(option.text):
            raise invalid_value(option.pointer, "empty", "An option of a question is empty. Write what it means.")


def distribution(log_odds: Sequence[float], temperature: float) -> Distribution:
    """Returns the probabilities of options. A single one is a predicate, whose other option is its contrary."""
    if len(log_odds) == 1:
        return [calibration.sigmoid(log_odds[0], temperature)]
    probabilities: Distribution = calibration.softmax(log_odds, temperature).tolist()
    return probabilities


def confidence(probabilities: Distribution) -> float:
    """Returns how peaked a distribution is: 0 if all options are equally likely, 1 if one is certain."""
    options = len(probabilities)
    return min(1.0, max(0.0, (options * max(probabilities) - 1) / (options - 1)))


def _reader(manifest: Manifest, known: Decisions, question: Question) -> Callable[[Mapping[str, float]], Distribution]:
    """Returns the function from the logits of a classifier to the answer of a question.

    Raises:
        Unprocessable: the classifier cannot answer the question.
    """
    exclusive = manifest.problem == "single_label" and len(manifest.labels) > 1
    if manifest.problem == "regression":
        raise _refusal(question, "The model computes a number and has no labels. Ask a zero-shot model.")
    if question.kind == "predicate":
        label = known.predicates.get(question.instructions)
        if label is None:
            raise _refusal(question, "The model's manifest maps no label to this predicate. Ask a zero-shot model.")
        if not exclusive:
            return lambda logits: [calibration.sigmoid(logits[label], known.temperature)]
        position = manifest.labels.index(label)
        return lambda logits: [
            float(calibration.softmax([logits[name] for name in manifest.labels], known.temperature)[position])
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
        chosen = known.scores.get(question.instructions, ())
        if len(chosen) != len(question.options):
            detail = "The model's manifest does not map this score to as many labels. Ask a zero-shot model."
            raise _refusal(question, detail)
    return lambda logits: distribution([logits[label] for label in chosen], known.temperature)


def _refusal(question: Question, detail: str) -> Unprocessable:
    return invalid_value(question.pointer, "unsupported", detail)
