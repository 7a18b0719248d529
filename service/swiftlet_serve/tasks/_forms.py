"""The inputs, parameters and answers of a task, read from its request and response models.

The type of `inputs` is a union. A text in it is an input of one field, `text`. A model is an input of its fields. Lists
are several inputs.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from swiftlet_serve.tasks._requests import Failure

TEXT: Final = "text"
PLAIN: Final = frozenset({str, float, int, bool})


class Input(NamedTuple):
    """A field of an input."""

    name: str
    required: bool = True
    many: bool = False  # whether it is a list of texts


class Form(NamedTuple):
    """One way to write an input."""

    fields: tuple[Input, ...]
    is_text: bool  # whether the input is the text itself

    @property
    def names(self) -> list[str]:
        """The names of its fields."""
        return [field.name for field in self.fields]


@cache
def forms(request: type[BaseModel]) -> Sequence[Form]:
    """Returns the forms of one input of a task, the simplest first."""
    members = _members(request.model_fields["inputs"].annotation)
    unique = [Form((Input(TEXT),), is_text=True)] if str in members else []
    for model in _models(members):
        form = Form(tuple(_input(name, field) for name, field in model.model_fields.items()), is_text=False)
        if set(form.names) not in [set(known.names) for known in unique]:
            unique.append(form)
    return unique


@cache
def parameter_names(request: type[BaseModel]) -> frozenset[str]:
    """Returns the names of a task's parameters."""
    field = request.model_fields.get("parameters")
    models = [] if field is None else _models(_members(field.annotation))
    return frozenset(name for model in models for name in model.model_fields)


def answer_fields(response: Any) -> dict[str, type]:
    """Returns the plain types of the fields of an answer. A vector is the only field of its answer, `embedding`."""
    members = _members(response, inside_lists=True)
    if float in members:
        return {"embedding": float}
    for model in _models(members):
        if model is Failure:
            continue
        kinds = {name: _members(field.annotation) for name, field in model.model_fields.items()}
        return {name: kind[0] for name, kind in kinds.items() if kind[0] in PLAIN and not _has_list(kind)}
    return {}


def _input(name: str, field: Any) -> Input:
    return Input(name, field.is_required(), _has_list(_members(field.annotation)))


def _has_list(members: Sequence[Any]) -> bool:
    return any(get_origin(member) is list for member in members)


def _models(members: Sequence[Any]) -> list[type[BaseModel]]:
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]


def _members(annotation: Any, *, inside_lists: bool = False) -> list[Any]:
    """Returns the members of a union. With `inside_lists`, a list stands for its elements."""
    origin = get_origin(annotation)
    if origin is Annotated or (inside_lists and origin is list):
        return _members(get_args(annotation)[0], inside_lists=inside_lists)
    if origin in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part, inside_lists=inside_lists)]
    return [annotation]
