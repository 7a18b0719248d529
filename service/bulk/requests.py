"""Requests of rows. The request model of a task declares which inputs it reads, so that a task needs nothing else.

The type of `inputs` is a union. A text in it is an input of one column, `text`. A model is an input of one column for
each of its fields. Lists are several inputs, which rows are not.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from swiftlet_serve.service.bulk.records import Record
from swiftlet_serve.service.errors import SetupError, Unprocessable
from swiftlet_serve.service.types import Task

TEXT: Final = "text"


class Field(NamedTuple):
    """A part of an input."""

    name: str
    required: bool = True
    many: bool = False  # whether it is a list of texts


class Form(NamedTuple):
    """One way to write an input."""

    fields: tuple[Field, ...]
    is_text: bool  # whether the input is the text itself


def forms(request: type[BaseModel]) -> list[Form]:
    """Returns the forms of one input of a task, the simplest first."""
    found: dict[frozenset[str], Form] = {}
    for member in _members(request.model_fields["inputs"].annotation):
        if member is str:
            form = Form((Field(TEXT),), True)
        elif isinstance(member, type) and issubclass(member, BaseModel):
            form = Form(tuple(_field(name, info) for name, info in member.model_fields.items()), False)
        else:
            continue
        found.setdefault(frozenset(field.name for field in form.fields), form)
    return list(found.values())


def choose(found: Sequence[Form], columns: Mapping[str, str]) -> tuple[Form, dict[str, str]]:
    """Returns the first form that has all named fields, and the column of each field to read.

    Args:
        found: the forms of a task.
        columns: columns by the names of fields. A required field that is not named is read from the column of its
            own name.

    Raises:
        SetupError: no form has all these fields.
    """
    for form in found:
        if columns.keys() <= {field.name for field in form.fields}:
            names = [field.name for field in form.fields if field.required or field.name in columns]
            return form, {name: columns.get(name, name) for name in names}
    ways = "; ".join(", ".join(field.name for field in form.fields) for form in found)
    raise SetupError(f"The task has no input of the fields {', '.join(columns)}. Its inputs are: {ways}.")


class RequestMaker:
    """Makes a request of each row."""

    def __init__(self, task: Task[Any, Any], columns: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Validates the parameters.

        Args:
            task: the task of the model.
            columns: columns by the names of fields, as given.
            parameters: the parameters of all requests.

        Raises:
            SetupError: the parameters or the columns are invalid.
        """
        self.form, self.columns = choose(forms(task.Request), columns)
        self._request = task.Request
        self._parameters = _parse(task, parameters)

    def make(self, record: Record) -> BaseModel | str:
        """Returns the request of a row, or the code of its error."""
        if record.error is not None:
            return record.error
        values: dict[str, Any] = {}
        for field in self.form.fields:
            if field.name not in self.columns:
                continue
            value = record.values.get(self.columns[field.name])
            if value is None:
                if field.required:
                    return "missing_value"
                continue
            if field.many and isinstance(value, str):
                value = _list(value)
            if not _is_text(value, many=field.many):
                return "wrong_type"
            values[field.name] = value
        try:
            inputs = values[TEXT] if self.form.is_text else values
            request: BaseModel = self._request.model_validate({"inputs": inputs, **self._parameters})
        except ValidationError:
            return "validation_failed"
        return request


def _parse(task: Task[Any, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a request that all rows share, once an example has been encoded with it."""
    if not parameters and not task.Request.model_fields["parameters"].is_required():
        return {}
    extra: Any = task.Request.model_config["json_schema_extra"]
    body = {"inputs": extra["examples"][0]["inputs"], "parameters": dict(parameters)}
    try:
        request = task.Request.model_validate_json(json.dumps(body))  # as strict as over HTTP
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"] if part != "parameters")
        raise SetupError(f"The parameter {name} is invalid: {first['msg']}.") from None
    try:
        task.encode(request)
    except Unprocessable as error:
        if any(one.pointer.startswith("/parameters") for one in error.field_errors):
            raise SetupError(f"A parameter does not fit the model: {error.detail}") from None
    return {"parameters": request.parameters}


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [one for part in get_args(annotation) for one in _members(part)]
    return [annotation]


def _field(name: str, info: Any) -> Field:
    members = [get_origin(one) or one for one in _members(info.annotation)]
    return Field(name, info.is_required(), list in members)


def _list(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return None


def _is_text(value: object, *, many: bool) -> bool:
    if many:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, str)
