"""The Open Inference Protocol, version 2, over REST: what clients of KServe, Triton and MLServer send.

Tensors come as JSON or with Triton's binary extension. `tensor_inference` says what they mean.

Specification: https://github.com/kserve/open-inference-protocol, and Triton's extensions of binary data and of the
model repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.responses import JSONResponse, Response

from swiftlet_serve import build_info
from swiftlet_serve.errors import InvalidRequest, SwiftletError
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts import tensor_inference, tensors
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation, Page
from swiftlet_serve.http.dialect_parts.tensor_inference import Scalar
from swiftlet_serve.http.dialect_parts.tensors import Tensor
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.http.wording import sentence
from swiftlet_serve.inference.catalog import ANY, VersionChoice
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime

Parameters = dict[str, Scalar]

MAX_VALUES: Final = 8192  # that are written as JSON in one go, which takes 1 ms
HEADER_LENGTH: Final = "inference-header-content-length"


class InferInput(ForeignBody):
    """An input tensor."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = Field(default_factory=dict)
    data: list[Any] | None = None


class InferOutput(ForeignBody):
    """An output tensor that the client asks for."""

    name: str
    parameters: Parameters = Field(default_factory=dict)


class InferRequest(ForeignBody):
    """An inference request of the Open Inference Protocol."""

    id: str | None = None
    parameters: Parameters = Field(default_factory=dict)
    inputs: list[InferInput] = Field(min_length=1, max_length=tensor_inference.MAX_INPUTS)
    outputs: list[InferOutput] | None = None


class InferResponse(BaseModel):
    """An inference response of the Open Inference Protocol."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[dict[str, Any]]


def infer(runtime: Runtime, request: Request) -> Translation:
    """Translates an inference request."""
    pipeline = _model(runtime, request.parameters, request.version)
    inference, tail = _parse(request)
    asked = [output.name for output in inference.outputs or ()]
    return tensor_inference.translate(
        pipeline, _tensors(inference.inputs, tail), inference.parameters, asked, partial(_respond, pipeline, inference)
    )


# The request


def _parse(request: Request) -> tuple[InferRequest, memoryview]:
    """Returns the request and its binary data.

    Raises:
        InvalidRequest: the length of the JSON is not a number up to the size of the body.
        SwiftletError: as `bodies.parse`.
    """
    length = request.headers.get(HEADER_LENGTH)
    if length is None:
        return bodies.parse(InferRequest, request.body), memoryview(b"")
    if not (length.isascii() and length.isdecimal()) or len(length) > 9 or int(length) > len(request.body):
        raise InvalidRequest("bad_framing", "Inference-Header-Content-Length must be the length of the JSON in bytes.")
    head, tail = request.body[: int(length)], memoryview(request.body)[int(length) :]
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
    for i, tensor in enumerate(inputs):
        pointer, size = f"/inputs/{i}", tensor.parameters.get("binary_data_size")
        if tensor.data is not None:
            yield tensors.from_json(tensor.name, tensor.datatype, tensor.shape, tensor.data, pointer)
            continue
        if type(size) is not int or not 0 <= size <= len(tail):
            raise InvalidRequest(
                "bad_framing",
                "An input has neither data nor as much binary data as it declares. Correct binary_data_size.",
            )
        yield tensors.from_bytes(tensor.name, tensor.datatype, tensor.shape, tail[:size], pointer)
        tail = tail[size:]
    if len(tail):
        raise InvalidRequest(
            "bad_framing", "The body has more binary data than the inputs declare. Correct binary_data_size."
        )


# The response


def _respond(pipeline: Pipeline, request: InferRequest, outputs: Sequence[Tensor]) -> TaskResponse:
    manifest = pipeline.model.manifest
    wanted = {output.name: output.parameters.get("binary_data") for output in request.outputs or ()}
    by_default = request.parameters.get("binary_data_output") is True
    described, packed = [], []
    for tensor in outputs:
        description: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        binary = wanted.get(tensor.name)
        if by_default if binary is None else binary is True:
            packed.append(tensors.to_bytes(tensor))
            description["parameters"] = {"binary_data_size": len(packed[-1])}
        if tensor.name == tensor_inference.OUTPUT:
            description.setdefault("parameters", {}).update(tensor_inference.OUTPUT_PARAMETERS)
        data = b"" if "binary_data_size" in description.get("parameters", {}) else b',"data":%b' % _dump(tensor.values)
        described.append(to_json(description)[:-1] + data + b"}")
    body = {"model_name": manifest.name, "model_version": pipeline.version_name}
    start = to_json(body if request.id is None else body | {"id": request.id})[:-1]
    head = b'%b,"outputs":[%b]}' % (start, b",".join(described))
    if not packed:
        return TaskResponse(head)
    response = TaskResponse(head + b"".join(packed), b"application/octet-stream")
    response.raw_headers.append((HEADER_LENGTH.encode(), b"%d" % len(head)))
    return response


def _dump(values: Sequence[Any]) -> bytes:
    """Returns values as JSON. They are written in parts: other threads wait meanwhile."""
    parts = [to_json(values[i : i + MAX_VALUES])[1:-1] for i in range(0, len(values), MAX_VALUES)]
    return b"[%b]" % b",".join(parts)


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error of the protocol. KServe's client wants exactly this media type."""
    return JSONResponse({"error": sentence(error), "code": error.code}, error.status, problem_details.headers(error))


# The pages


def _model(runtime: Runtime, parameters: Mapping[str, str], choice: VersionChoice = ANY) -> Pipeline:
    return tensor_inference.find(runtime, parameters["model"], parameters.get("version", ""), choice)


def _server(_: Runtime, __: Mapping[str, str]) -> Response:
    extensions = tensor_inference.EXTENSIONS
    return JSONResponse({"name": "swiftlet", "version": build_info.version(), "extensions": extensions})


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
    return JSONResponse(
        {
            "name": manifest.name,
            "versions": tensor_inference.versions_of(runtime, pipeline),
            "platform": "swiftlet",
            "inputs": [slot._asdict() for slot in tensor_inference.inputs_of(pipeline)],
            "outputs": [slot._asdict() for slot in tensor_inference.outputs_of(pipeline)],
        }
    )


def _index(runtime: Runtime, _: Mapping[str, str]) -> Response:
    return JSONResponse(
        [
            {"name": name, "version": pipeline.version_name, "state": "READY", "reason": ""}
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
