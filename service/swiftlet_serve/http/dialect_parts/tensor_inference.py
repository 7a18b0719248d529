"""Inference on tensors, as the Open Inference Protocol describes it over REST and gRPC.

Texts are BYTES tensors. Inputs have the names of our requests (`text`, or `question` and `context`), or the names of
other servers: `args` and `array_inputs` (MLServer), or any name if there is one input only (KServe).

The fields of our answers become one tensor each, of shape (inputs, answers per input). The tensor `output` holds our
answer to each input as JSON. A response has it where the client asks for it, where MLServer's names came in, and where
the answers have no common shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from pydantic import BaseModel

from swiftlet_serve.errors import NotFound, invalid_value
from swiftlet_serve.http.dialect_parts.dialect import translation
from swiftlet_serve.http.dialect_parts.tensors import Tensor
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.wording import Wording
from swiftlet_serve.inference.catalog import ANY, VersionChoice
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.settings import MAX_TIMEOUT_MS
from swiftlet_serve.tasks._forms import answer_fields, forms, parameter_names
from swiftlet_serve.tasks._requests import Request
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import json_text
from swiftlet_serve.types.body_model import BodyModel

Scalar = bool | int | float | str | None
"""The value of a parameter. None means its default."""

MLSERVER: Final = frozenset({"args", "array_inputs"})
TEXTS: Final = ("text", "inputs", *sorted(MLSERVER))
"""The names of the input that holds the texts."""
TEXT: Final = re.compile(r"/inputs(?:/(\d+))?(?:/([a-z_]+))?(?:/(\d+))?")
"""The pointer to a text in our request: its number, the field of an object, and the number in a list."""
TRUNCATION: Final = "set the parameter truncation to true"
MAX_TIMEOUT_US: Final = 1000 * MAX_TIMEOUT_MS
OUTPUT: Final = "output"
OUTPUT_PARAMETERS: Final[Mapping[str, str]] = {"content_type": "hg_jsonlist"}
"""The parameters of `output`: MLServer's name of JSON."""
EXTENSIONS: Final = ("binary_tensor_data", "model_repository")
DATATYPES: Final[Mapping[type, str]] = {str: "BYTES", float: "FP32", int: "INT64", bool: "BOOL"}
MAX_INPUTS: Final = 64
RESERVED: Final = frozenset(
    {"binary_data_output", "content_type", "headers", "priority", "sequence_end", "sequence_id", "sequence_start"}
)
"""Parameters that are no parameters of a task. They have no effect, except the first one."""


class Slot(NamedTuple):
    """An input or an output of a model."""

    name: str
    datatype: str
    shape: Sequence[int]
    """-1 for a size that requests choose."""


def find(runtime: Runtime, name: str, version: str = "", choice: VersionChoice = ANY) -> Pipeline:
    """Returns the pipeline of a model, given its name or its task.

    Args:
        runtime: the loaded models.
        name: the name of the model, or a task to mean its default model.
        version: the version of the model. Empty: the one that is served.
        choice: the version that the request's head asks for.

    Raises:
        NotFound: the model or its version does not exist.
        ModelLoading: the version is not in memory.
    """
    pipeline = runtime.catalog.find(name, choice)
    if version and pipeline.version is not None:
        chosen = runtime.catalog.find(f"{pipeline.model.manifest.name}@{version}")
        return chosen.for_task(pipeline.model.task_name)
    if version and version != pipeline.model.manifest.version:
        raise NotFound("unknown_model", "The model has no such version. See /models for the served versions.")
    return pipeline


def versions_of(runtime: Runtime, pipeline: Pipeline) -> list[str]:
    """Returns the versions of a pipeline's model that are served."""
    if pipeline.version is None:
        return [pipeline.version_name]
    return [str(version) for version in runtime.catalog.models[pipeline.model.manifest.name].pipelines]


def inputs_of(pipeline: Pipeline) -> list[Slot]:
    """Returns the inputs of a model."""
    request: type[Request] = pipeline.model.task.Request
    return [Slot(name, "BYTES", [-1]) for name in forms(request)[0].names]


def outputs_of(pipeline: Pipeline) -> list[Slot]:
    """Returns the outputs of a model."""
    answer = answer_fields(pipeline.model.task.Response)
    datatypes = {name: DATATYPES[kind] for name, kind in answer.items()} | {OUTPUT: "BYTES"}
    return [Slot(name, datatype, [-1, -1]) for name, datatype in datatypes.items()]


def translate(
    pipeline: Pipeline,
    tensors: Iterable[Tensor],
    parameters: Mapping[str, Scalar],
    asked: Sequence[str],
    respond: Callable[[Sequence[Tensor]], TaskResponse],
) -> Translation:
    """Translates an inference request.

    Args:
        pipeline: the pipeline of the model.
        tensors: the inputs.
        parameters: the parameters of the request.
        asked: the names of the outputs that the client asks for. Empty: all but `output`.
        respond: returns the response with these outputs.

    Raises:
        Unprocessable: inputs or parameters do not fit the task.
    """
    inputs = list(tensors)
    body = _body(pipeline, inputs, parameters)

    def render(answer: Any, _: RequestRecord) -> TaskResponse:
        answers = answer if isinstance(body["inputs"], list) else [pipeline.model.task.single(answer)]
        mlserver = any(tensor.name in MLSERVER for tensor in inputs)
        return respond(list(_choose(_columns(answers), answers, asked, mlserver=mlserver)))

    wording = Wording(partial(_place, inputs), TRUNCATION)
    return translation(pipeline, body, render, wording, _timeout_s(parameters))


# The request


def _body(pipeline: Pipeline, inputs: Sequence[Tensor], parameters: Mapping[str, Scalar]) -> dict[str, Any]:
    """Returns the fields of the request of the model's task.

    Raises:
        Unprocessable: inputs or parameters do not fit the task.
    """
    model: type[Request] = pipeline.model.task.Request
    texts, others = _split(model, inputs)
    if not texts:
        _refuse("too_short", "The input has no text.")
    body: dict[str, Any] = {"inputs": texts if len(texts) > 1 else texts[0]}
    if others or parameters:
        body |= _arguments(model, parameters, others)
    return body


def _place(inputs: Sequence[Tensor], pointer: str) -> str:
    """Returns the place of a text in its tensor. The place of a part of our request, such as a parameter, stays."""
    match = TEXT.fullmatch(pointer)
    if match is None:
        return pointer
    first, field, last = match.groups()
    texts = [(at, tensor) for at, tensor in enumerate(inputs) if tensor.datatype == "BYTES"]
    named = [(at, tensor) for at, tensor in texts if _field(tensor.name) == (field or "text")]
    for at, tensor in named or texts:
        number = last or first
        return f"/inputs/{at}/data" + (f"/{int(number) % len(tensor.values)}" if number and tensor.values else "")
    return pointer


def _split(model: type[Request], inputs: Sequence[Tensor]) -> tuple[Sequence[Any], list[Tensor]]:
    """Returns the inputs of the task, and the remaining tensors.

    Raises:
        Unprocessable: the task's inputs are missing, mean the same, or have different numbers of texts.
    """
    input_forms = forms(model)
    plain, fields = input_forms[0].is_text, input_forms[-1].names
    if plain and len(inputs) == 1 and inputs[0].name in TEXTS and inputs[0].datatype == "BYTES":
        return inputs[0].values, []  # the usual request
    by_field: dict[str, Tensor] = {}
    for at, tensor in enumerate(inputs):
        field = _field(tensor.name) if plain else tensor.name
        if field in by_field:
            detail = "Two inputs have the same name, or names that mean the same. Send one of them, with all values."
            _refuse("duplicate", detail, f"/inputs/{at}/name")
        by_field[field] = tensor
    texts = {field: tensor.values for field, tensor in by_field.items() if tensor.datatype == "BYTES"}
    named = [name for name in fields if name in texts]
    if (len(fields) > 1 and named == fields) or set(named) - {"text"}:
        columns = {name: list(texts[name]) for name in named}
        many = {field.name for field in input_forms[-1].fields if field.many}
        return _objects(columns, many), [tensor for field, tensor in by_field.items() if field not in columns]
    if not plain:
        _refuse("missing", f"The request lacks an input. This model needs {' and '.join(fields)}.")
    chosen = "text" if "text" in texts else next(iter(texts)) if len(texts) == 1 else ""
    if not chosen:
        _refuse("missing", "The request has no input of texts. Name it text, with the datatype BYTES.")
    return texts[chosen], [tensor for field, tensor in by_field.items() if field != chosen]


def _field(name: str) -> str:
    """Returns the name of the field that an input fills."""
    return "text" if name in TEXTS else name


def _arguments(model: type[Request], parameters: Mapping[str, Scalar], others: Sequence[Tensor]) -> dict[str, Any]:
    """Returns the fields of the task's request beside its inputs.

    Raises:
        Unprocessable: a parameter or an input is unknown to the task.
    """
    if any(_is_reserved(tensor.name) for tensor in others):
        _refuse("extra_forbidden", "An input has the name of a parameter of the protocol. Send it under parameters.")
    if any(len(tensor.values) != 1 for tensor in others):
        _refuse(
            "extra_forbidden",
            "An input is neither one of the task nor a parameter. Remove it; /openapi.json lists both.",
        )
    arguments = {tensor.name: tensor.values[0] for tensor in others}
    if arguments.keys() & parameters.keys():
        _refuse("duplicate", "An input and a parameter of the request have the same name. Send one of them.")
    fields = model.model_fields.keys() - {"inputs", "parameters"}
    whole = {name: value for name, value in arguments.items() if name in fields}
    chosen = _task_parameters(
        model, {name: value for name, value in (dict(parameters) | arguments).items() if name not in whole}
    )
    return whole | ({"parameters": chosen} if chosen else {})


def _objects(columns: Mapping[str, list[str]], lists: Set[str]) -> list[dict[str, Any]]:
    """Returns the inputs that several tensors make together. A tensor of one text serves all of them.

    Raises:
        Unprocessable: the numbers of texts do not fit.
    """
    whole = {name: [column] if name in lists else column for name, column in columns.items()}
    count = max(map(len, whole.values()))
    if any(len(column) not in (1, count) for column in whole.values()):
        _refuse("wrong_shape", "The inputs have different numbers of texts. Send equally many in each.")
    return [{name: column[i % len(column)] for name, column in whole.items()} for i in range(count)]


def _task_parameters(model: type[BaseModel], parameters: Mapping[str, Scalar]) -> dict[str, Any]:
    """Returns the parameters of a task. Lists come as JSON, because parameters of the protocol are scalars.

    Raises:
        Unprocessable: the task has no such parameter, or a list is not JSON.
    """
    known = parameter_names(model)
    chosen: dict[str, Any] = {}
    for name, value in parameters.items():
        if _is_reserved(name):
            continue
        if name not in known:
            _refuse(
                "extra_forbidden",
                "The model's task has no such parameter. /openapi.json lists its parameters.",
                "/parameters",
            )
        chosen[name] = _list(value) if isinstance(value, str) and value.startswith("[") else value
    return chosen


def _is_reserved(name: str) -> bool:
    """Returns whether a parameter of this name is none of a task."""
    return name in RESERVED or name == "timeout" or name.startswith("triton_")


def _list(text: str) -> Any:
    """Returns the list that a parameter holds as JSON.

    Raises:
        Unprocessable: it is not JSON, or has too many items.
    """
    if bodies.has_more_items(text.encode(), BodyModel.max_items):
        raise bodies.too_many_items(BodyModel.max_items, "/parameters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        _refuse("json_invalid", "A parameter begins with [ and is not valid JSON. Write a list as JSON.", "/parameters")


def _timeout_s(parameters: Mapping[str, Scalar]) -> float | None:
    """Returns the timeout that the parameters of a request name in microseconds, in seconds.

    Raises:
        Unprocessable: it is not a whole number in its range.
    """
    timeout_us = parameters.get("timeout")
    if timeout_us is None:
        return None
    if type(timeout_us) is not int or not 1 <= timeout_us <= MAX_TIMEOUT_US:
        detail = f"The parameter timeout is invalid. Send a whole number of microseconds from 1 to {MAX_TIMEOUT_US}."
        raise invalid_value("/parameters/timeout", "timeout_parameter", detail, MAX_TIMEOUT_US)
    return timeout_us / 1e6


# The answers


def _columns(answers: Sequence[Any]) -> list[Tensor]:
    """Returns a tensor for each field of the answers, if all have the same shape; otherwise none."""
    answers = [answer.tolist() if isinstance(answer, np.ndarray) else answer for answer in answers]
    rows = [answer if isinstance(answer, list) else [answer] for answer in answers]
    width = len(rows[0])
    if not width or any(len(row) != width for row in rows):
        return []
    shape, items = [len(rows), width], [item for row in rows for item in row]
    first = items[0]
    if isinstance(first, float):  # vectors
        return [Tensor("embedding", "FP32", shape, items)]
    if not isinstance(first, dict) or any(not isinstance(item, dict) or item.keys() != first.keys() for item in items):
        return []
    columns = []
    for name, value in first.items():
        kind, values = type(value), [item[name] for item in items]
        if kind in DATATYPES and all(type(item) is kind for item in values):
            columns.append(Tensor(name, DATATYPES[kind], shape, values))
    return columns


def _choose(
    columns: Sequence[Tensor], answers: Sequence[Any], asked: Sequence[str], *, mlserver: bool
) -> Iterator[Tensor]:
    """Returns the outputs of a response.

    Raises:
        Unprocessable: the client asks for an unknown output.
    """
    if not asked:
        yield from [*columns, _as_json(answers)] if mlserver or not columns else columns
        return
    by_name = {tensor.name: tensor for tensor in columns}
    for name in asked:
        if name not in (*by_name, OUTPUT):
            known = ", ".join((*by_name, OUTPUT))
            _refuse("unknown_output", f"The model has no such output. Ask for {known}.", "/outputs")
        yield by_name[name] if name in by_name else _as_json(answers)


def _as_json(answers: Sequence[Any]) -> Tensor:
    return Tensor(OUTPUT, "BYTES", [len(answers), 1], [json_text.write(answer).decode() for answer in answers])


def _refuse(code: str, detail: str, pointer: str = "/inputs") -> NoReturn:
    raise invalid_value(pointer, code, detail)
