"""The inputs, parameters and answers of a task, read from its request and response models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel

from swiftlet_serve.service.tasks import Failure

PLAIN: Final = frozenset({str, float, int, bool})


@cache
def input_fields(model: type[BaseModel]) -> tuple[list[str], bool]:
    """Returns the fields of an input that is an object, and whether an input may be a plain text."""
    kinds = list(_members(model.model_fields["inputs"].annotation))
    objects = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return list(objects[0].model_fields) if objects else ["text"], str in kinds


@cache
def list_fields(model: type[BaseModel]) -> frozenset[str]:
    """Returns the fields of an input that hold several texts, such as the texts to rank."""
    kinds = _members(model.model_fields["inputs"].annotation)
    objects = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    fields = objects[0].model_fields if objects else {}
    return frozenset(name for name, field in fields.items() if get_origin(field.annotation) is list)


@cache
def parameter_names(model: type[BaseModel]) -> frozenset[str]:
    """Returns the names of a task's parameters."""
    field = model.model_fields.get("parameters")
    members = [] if field is None else list(_members(field.annotation))
    kinds = [kind for kind in members if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return frozenset(name for kind in kinds for name in kind.model_fields)


def answer_fields(response: Any) -> dict[str, type]:
    """Returns the plain types of the fields of an answer. A vector is the only field of its answer, `embedding`."""
    members = list(_members(response))
    for kind in members:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Failure:
            types = {
                name: next(_members(field.annotation))
                for name, field in kind.model_fields.items()
                if not any(get_origin(each) is list for each in (field.annotation, *get_args(field.annotation)))
            }
            return {name: one for name, one in types.items() if one in PLAIN}
    return {"embedding": float} if float in members else {}


def _members(annotation: Any) -> Iterator[Any]:
    """Returns the types that an annotation is made of."""
    arguments = get_args(annotation)
    if not arguments:
        yield annotation
    for one in arguments:
        yield from _members(one)
