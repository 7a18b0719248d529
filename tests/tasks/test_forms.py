"""The inputs and answers of a task, read from its models."""

from __future__ import annotations

import pytest

from swiftlet_serve import tasks
from swiftlet_serve.tasks._forms import answer_fields, forms, parameter_names


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("classify", ["text", "text text_pair?"]),
        ("qa", ["question context"]),
        ("rerank", ["query texts*"]),
        ("score", ["text", "prompt continuation"]),
        ("zero-shot", ["text"]),
    ],
)
def test_forms_are_those_of_the_request(task, names):
    found = [
        " ".join(f"{field.name}{'' if field.required else '?'}{'*' if field.many else ''}" for field in form.fields)
        for form in forms(tasks.load(task).TASK.Request)
    ]

    assert found == names


def test_answer_has_the_plain_fields_of_its_model_or_a_vector():
    assert answer_fields(tasks.load("classify").TASK.Response) == {"label": str, "score": float}
    assert answer_fields(tasks.load("embed").TASK.Response) == {"embedding": float}


def test_parameters_are_those_of_the_request():
    assert parameter_names(tasks.load("score").TASK.Request) == {"return_tokens"}
