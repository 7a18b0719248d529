"""The Open Inference Protocol, version 2, over REST: what clients of KServe, Triton and MLServer send.

Texts are BYTES tensors, as JSON or with Triton's binary extension. The names of inputs are those of our requests
(`text`, or `question` and `context`), or those of other servers: `args` and `array_inputs` (MLServer), or any name if
there is one input only (KServe).

The fields of our answers become one tensor each, of shape (inputs, answers per input). The tensor `output` holds our
answer to each input as JSON. A response has it where the client asks for it, where MLServer's names came in, and where
the answers have no common shape.

Specification: https://github.com/kserve/open-inference-protocol, and Triton's extensions of binary data and of the
model repository.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.responses import JSONResponse, Response

from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import FieldError, InvalidRequest, NotFound, SwiftletError, Unprocessable
from swiftlet_serve.service.http import bodies, openapi, problem_details, task_schema, tensors
from swiftlet_serve.service.http.dialect import Call, Foreign, Operation, Page, error_sentence
from swiftlet_serve.service.http.task_endpoint import TaskResponse, Translation
from swiftlet_serve.service.http.tensors import Tensor
from swiftlet_serve.service.pipeline import Pipeline
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.telemetry.request_record import RequestRecord

Scalar = bool | int | float | str
Parameters = dict[str, Scalar]

HEADER_LENGTH: Final = "inference-header-content-length"
MLSERVER: Final = frozenset({"args", "array_inputs"})
TEXTS: Final = ("text", "inputs", *sorted(MLSERVER))
"""The names of the input that holds the texts."""
OUTPUT: Final = "output"
DATATYPES: Final[Mapping[type, str]] = {str: "BYTES", float: "FP32", int: "INT64", bool: "BOOL"}
RESERVED: Final = frozenset(
    {"binary_data_output", "content_type", "headers", "priority", "sequence_end", "sequence_id", "sequence_start"}
)
"""Parameters that are no parameters of a task. They have no effect, except the first one."""


class InferInput(Foreign):
    """An input tensor."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = Field(default_factory=dict)
    data: list[Any] | None = None


class InferOutput(Foreign):
    """An output tensor that the client asks for."""

    name: str
    parameters: Parameters = Field(default_factory=dict)


class InferRequest(Foreign):
    """An inference request of the Open Inference Protocol."""

    id: str | None = None
    parameters: Parameters = Field(default_factory=dict)
    inputs: list[InferInput] = Field(min_length=1, max_length=64)
    outputs: list[InferOutput] | None = None


class InferResponse(BaseModel):
    """An inference response of the Open Inference Protocol."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[dict[str, Any]]


def infer(runtime: Runtime, call: Call) -> Translation:
    """Translates an inference request."""
    pipeline = _model(runtime, call.parameters)
    request, tail = _parse(call)
    inputs = {tensor.name: tensor for tensor in _tensors(request.inputs, tail)}
    timeout_us = request.parameters.get("timeout")
    own = _own_request(pipeline, inputs, request.parameters)

    def render(answer: Any, _: RequestRecord) -> TaskResponse:
        answers = answer if _is_batch(own) else [pipeline.model.task.single(answer)]
        found = _columns(answers)
        mlserver = bool(MLSERVER & inputs.keys())
        chosen = list(_choose(found, answers, request.outputs, mlserver=mlserver))
        return _render(pipeline, request, chosen)

    timeout_s = timeout_us / 1e6 if isinstance(timeout_us, int) and timeout_us > 0 else None
    return Translation(pipeline, own, render, timeout_s)


# The request


def _parse(call: Call) -> tuple[InferRequest, memoryview]:
    """Returns the request and its binary data.

    Raises:
        InvalidRequest: the length of the JSON is not a number up to the size of the body.
        SwiftletError: as `bodies.parse`.
    """
    length = call.header(HEADER_LENGTH)
    if length is None:
        return bodies.parse(InferRequest, call.body), memoryview(b"")
    if not (length.isascii() and length.isdecimal()) or len(length) > 9 or int(length) > len(call.body):
        raise InvalidRequest("bad_framing", "Inference-Header-Content-Length is not the length of the JSON.")
    head, tail = call.body[: int(length)], memoryview(call.body)[int(length) :]
    if head:
        return bodies.parse(InferRequest, head), tail
    # A raw body: the content of the only text. All outputs are binary.
    raw = InferInput(name="text", shape=[1], datatype="BYTES", parameters={"binary_data_size": len(tail) + 4})
    packed = len(tail).to_bytes(4, "little") + bytes(tail)
    return InferRequest(inputs=[raw], parameters={"binary_data_output": True}), memoryview(packed)


def _tensors(inputs: Sequence[InferInput], tail: memoryview) -> Iterator[Tensor]:
    """Returns the input tensors.

    Raises:
        InvalidRequest: the binary data is shorter or longer than the inputs declare.
        Unprocessable: a tensor is invalid.
    """
    for i, one in enumerate(inputs):
        pointer, size = f"/inputs/{i}", one.parameters.get("binary_data_size")
        if one.data is not None:
            yield tensors.from_json(one.name, one.datatype, one.shape, one.data, pointer)
            continue
        if type(size) is not int or not 0 <= size <= len(tail):
            raise InvalidRequest("bad_framing", "An input has neither data nor as much binary data as it declares.")
        yield tensors.from_bytes(one.name, one.datatype, one.shape, tail[:size], pointer)
        tail = tail[size:]
    if len(tail):
        raise InvalidRequest("bad_framing", "The body has more binary data than the inputs declare.")


def _own_request(pipeline: Pipeline, inputs: Mapping[str, Tensor], parameters: Mapping[str, Scalar]) -> tasks.Request:
    """Returns the request of the model's task.

    Raises:
        Unprocessable: inputs or parameters do not fit the task.
    """
    model: type[tasks.Request] = pipeline.model.task.Request
    texts = {name: tensor.values for name, tensor in inputs.items() if tensor.datatype == "BYTES"}
    fields, plain = task_schema.input_fields(model)
    found: Sequence[Any]
    if (len(fields) > 1 and set(texts) & set(fields) == set(fields)) or (set(texts) & set(fields)) - {"text"}:
        columns = {name: list(texts[name]) for name in fields if name in texts}
        found, used = _objects(columns, task_schema.list_fields(model)), set(columns)
    elif plain:
        name = next((name for name in TEXTS if name in texts), next(iter(texts)) if len(texts) == 1 else "")
        if not name:
            _refuse("missing", "The request has no input of texts. Name it text, with the datatype BYTES.")
        found, used = texts[name], {name}
    else:
        _refuse("missing", f"The request lacks an input. This model needs {' and '.join(fields)}.")
    if not found:
        _refuse("too_short", "The input has no text.")
    others = [tensor for tensor in inputs.values() if tensor.name not in used]
    if any(len(tensor.values) != 1 for tensor in others):
        _refuse("extra_forbidden", "The request has an input that the model's task does not have.")
    arguments = {tensor.name: tensor.values[0] for tensor in others}
    whole = {name: value for name, value in arguments.items() if name in model.model_fields and name != "parameters"}
    chosen = _task_parameters(
        model, {name: value for name, value in (*parameters.items(), *arguments.items()) if name not in whole}
    )
    body = {"inputs": found if len(found) > 1 else found[0], **({"parameters": chosen} if chosen else {}), **whole}
    request: tasks.Request = bodies.validate(model, body)
    return request


def _objects(columns: Mapping[str, list[str]], lists: frozenset[str]) -> list[dict[str, Any]]:
    """Returns the inputs that several tensors make together. A tensor of one text serves all of them.

    Raises:
        Unprocessable: the numbers of texts do not fit.
    """
    whole = {name: [column] if name in lists else column for name, column in columns.items()}
    count = max(map(len, whole.values()))
    if any(len(column) not in (1, count) for column in whole.values()):
        _refuse("wrong_shape", "The inputs have different numbers of texts.")
    return [{name: column[i % len(column)] for name, column in whole.items()} for i in range(count)]


def _task_parameters(model: type[BaseModel], given: Mapping[str, Scalar]) -> dict[str, Any]:
    """Returns the parameters of a task. Lists come as JSON, because parameters of the protocol are scalars.

    Raises:
        Unprocessable: the task has no such parameter, or a list is not JSON.
    """
    known = task_schema.parameter_names(model)
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        if name in RESERVED or name == "timeout" or name.startswith("triton_"):
            continue
        if name not in known:
            _refuse("extra_forbidden", "The model's task has no such parameter.", "/parameters")
        is_list = isinstance(value, str) and value.startswith("[")
        try:
            chosen[name] = json.loads(value) if is_list and isinstance(value, str) else value
        except (ValueError, RecursionError):
            _refuse("json_invalid", "A parameter begins like a list and is not valid JSON.", "/parameters")
    return chosen


def _is_batch(request: Any) -> bool:
    return isinstance(request.inputs, list)


# The response


def _columns(answers: Sequence[Any]) -> list[Tensor]:
    """Returns a tensor for each field of the answers, if all have the same shape; otherwise none."""
    rows = [answer if isinstance(answer, list) else [answer] for answer in answers]
    first = next((item for row in rows for item in row), None)
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        return []
    shape, items = [len(rows), len(rows[0])], [item for row in rows for item in row]
    if isinstance(first, float):  # vectors
        return [Tensor("embedding", "FP32", shape, items)]
    if not isinstance(first, dict) or any(not isinstance(item, dict) or item.keys() != first.keys() for item in items):
        return []
    return [
        Tensor(name, DATATYPES[type(value)], shape, [item[name] for item in items])
        for name, value in first.items()
        if type(value) in DATATYPES and all(type(item[name]) is type(value) for item in items)
    ]


def _choose(
    found: Sequence[Tensor], answers: Sequence[Any], asked: Sequence[InferOutput] | None, *, mlserver: bool
) -> Iterator[Tensor]:
    """Returns the outputs of a response.

    Raises:
        Unprocessable: the client asks for an output that there is not.
    """
    if not asked:
        yield from [*found, _as_json(answers)] if mlserver or not found else found
        return
    by_name = {tensor.name: tensor for tensor in found}
    for one in asked:
        if one.name not in (*by_name, OUTPUT):
            known = ", ".join((*by_name, OUTPUT))
            _refuse("unknown_output", f"There is no such output. There are {known}.", "/outputs")
        yield by_name[one.name] if one.name in by_name else _as_json(answers)


def _as_json(answers: Sequence[Any]) -> Tensor:
    return Tensor(OUTPUT, "BYTES", [len(answers), 1], [to_json(answer).decode() for answer in answers])


def _render(pipeline: Pipeline, request: InferRequest, outputs: Sequence[Tensor]) -> TaskResponse:
    manifest = pipeline.model.manifest
    wanted = {one.name: one.parameters.get("binary_data") for one in request.outputs or ()}
    by_default = request.parameters.get("binary_data_output") is True
    described, packed = [], []
    for tensor in outputs:
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        binary = wanted.get(tensor.name)
        if by_default if binary is None else binary is True:
            packed.append(tensors.to_bytes(tensor))
            one["parameters"] = {"binary_data_size": len(packed[-1])}
        else:
            one["data"] = tensor.values
        if tensor.name == OUTPUT:
            one.setdefault("parameters", {})["content_type"] = "hg_jsonlist"  # MLServer's name of JSON
        described.append(one)
    body = {"model_name": manifest.name, "model_version": manifest.version, "outputs": described}
    head = to_json(body if request.id is None else body | {"id": request.id})
    if not packed:
        return TaskResponse(head)
    response = TaskResponse(head + b"".join(packed), b"application/octet-stream")
    response.raw_headers.append((HEADER_LENGTH.encode(), b"%d" % len(head)))
    return response


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error of the protocol. KServe's client wants exactly this media type."""
    return JSONResponse(
        {"error": error_sentence(error), "code": error.code}, error.status, problem_details.headers(error)
    )


def _refuse(code: str, detail: str, pointer: str = "/inputs") -> NoReturn:
    raise Unprocessable("validation_failed", detail, field_errors=[FieldError(pointer, code)])


# The pages


def _model(runtime: Runtime, parameters: Mapping[str, str]) -> Pipeline:
    pipeline = runtime.find(parameters["model"])
    if parameters.get("version", pipeline.model.manifest.version) != pipeline.model.manifest.version:
        raise NotFound("unknown_model", "The model has no such version. See /models for the served versions.")
    return pipeline


def _server(_: Runtime, __: Mapping[str, str]) -> Response:
    extensions = ["binary_tensor_data", "model_repository"]
    return JSONResponse({"name": "swiftlet", "version": openapi.version(), "extensions": extensions})


def _live(_: Runtime, __: Mapping[str, str]) -> Response:
    return JSONResponse({"live": True})


def _ready(runtime: Runtime, _: Mapping[str, str]) -> Response:
    runtime.check_ready()
    return JSONResponse({"live": True, "ready": True})  # the specification's key, and KServe's


def _models(runtime: Runtime, _: Mapping[str, str]) -> Response:
    return JSONResponse({"models": list(runtime.pipelines)})


def _model_ready(runtime: Runtime, parameters: Mapping[str, str]) -> Response:
    pipeline = _model(runtime, parameters)
    runtime.check_ready()
    return JSONResponse({"name": pipeline.model.manifest.name, "ready": True})


def _describe(runtime: Runtime, parameters: Mapping[str, str]) -> Response:
    pipeline = _model(runtime, parameters)
    manifest = pipeline.model.manifest
    own: type[tasks.Request] = pipeline.model.task.Request
    fields, plain = task_schema.input_fields(own)
    answer = task_schema.answer_fields(pipeline.model.task.Response)
    outputs = {name: DATATYPES[kind] for name, kind in answer.items()} | {OUTPUT: "BYTES"}
    return JSONResponse(
        {
            "name": manifest.name,
            "versions": [manifest.version],
            "platform": "swiftlet",
            "inputs": [_slot(name, "BYTES", [-1]) for name in (["text"] if plain else fields)],
            "outputs": [_slot(name, kind, [-1, -1]) for name, kind in outputs.items()],
        }
    )


def _slot(name: str, datatype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape}


def _index(runtime: Runtime, _: Mapping[str, str]) -> Response:
    return JSONResponse(
        [
            {"name": name, "version": pipeline.model.manifest.version, "state": "READY", "reason": ""}
            for name, pipeline in runtime.pipelines.items()
        ]
    )


MODEL: Final = "/v2/models/{model}"
VERSION: Final = MODEL + "/versions/{version}"
OPERATIONS: Final = tuple(
    Operation(path + "/infer", "Inference", infer, InferRequest, InferResponse, json_only=False)
    for path in (MODEL, VERSION)
)
PAGES: Final = (
    Page("/v2", "Description of the server", _server),
    Page("/v2/health/live", "Liveness check", _live, public=True),
    Page("/v2/health/ready", "Readiness check", _ready, public=True),
    Page("/v2/models", "Names of the served models", _models),
    *(Page(path, "Description of a model", _describe) for path in (MODEL, VERSION)),
    *(Page(path + "/ready", "Readiness of a model", _model_ready) for path in (MODEL, VERSION)),
    Page("/v2/repository/index", "State of the models", _index, method="POST"),
)
