"""Makes requests from rows. A row is one input of the task, with a column for each of its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from swiftlet_serve.bulk.records import Record
from swiftlet_serve.errors import SetupError, Unprocessable
from swiftlet_serve.tasks._forms import TEXT, Form, forms
from swiftlet_serve.types import Task


def choose(known: Sequence[Form], columns: Mapping[str, str]) -> tuple[Form, dict[str, str]]:
    """Returns the first form that has all named fields, and the column of each field to read.

    Args:
        known: the forms of a task.
        columns: columns by the names of fields. A required field that is not named is read from the column of its
            own name.

    Raises:
        SetupError: no form has all these fields.
    """
    for form in known:
        if columns.keys() <= set(form.names):
            names = [field.name for field in form.fields if field.required or field.name in columns]
            return form, {name: columns.get(name, name) for name in names}
    ways = "; ".join(", ".join(form.names) for form in known)
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
        self._request: type[BaseModel] = task.Request
        self.form, self.columns = choose(forms(self._request), columns)  # type: ignore[arg-type]  # mypy: type[Any] has no hash
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
        if any(field.pointer.startswith("/parameters") for field in error.field_errors):
            raise SetupError(f"A parameter does not fit the model: {error.detail}") from None
    return {"parameters": request.parameters}


def _list(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return None


def _is_text(value: object, *, many: bool) -> bool:
    if many:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, str)
