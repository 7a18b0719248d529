"""The methods of the Open Inference Protocol, version 2, over gRPC.

Specification: https://github.com/kserve/open-inference-protocol, and Triton's extension of the model repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import Message

from swiftlet_serve import build_info
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.grpc import messages
from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.http.dialect_parts import tensor_inference
from swiftlet_serve.http.dialect_parts.tensors import Tensor
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translate, Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.runtime import Runtime

SERVICE: Final = "inference.GRPCInferenceService"
DIALECT: Final = "open-inference-grpc"
"""The name of the protocol in metrics."""


def infer(runtime: Runtime) -> Translate:
    """Returns the translation of ModelInfer's requests."""
    runtime.stats.dialects[DIALECT, "2xx"] += 0  # a counter begins at 0

    def translate(request: Request) -> Translation:
        request.record.dialect = DIALECT
        inference = messages.parse(pb.ModelInferRequest, request.body)
        pipeline = tensor_inference.find(runtime, inference.model_name, inference.model_version, request.version)
        name, version = pipeline.model.manifest.name, pipeline.version_name

        def respond(outputs: Sequence[Tensor]) -> TaskResponse:
            response = messages.response(name, version, inference.id, outputs)
            return TaskResponse(response.SerializeToString(), b"application/grpc+proto")

        return tensor_inference.translate(
            pipeline,
            messages.input_tensors(inference),
            messages.parameters(inference.parameters),
            [output.name for output in inference.outputs],
            respond,
        )

    return translate


class Page(NamedTuple):
    """A method that runs no model."""

    request: type[Message]
    respond: Callable[[Runtime, object], Message]
    """Is given the request. Raises SwiftletError."""
    public: bool = False
    """Whether it needs no API key."""


def _live(_: Runtime, __: object) -> Message:
    return pb.ServerLiveResponse(live=True)


def _ready(runtime: Runtime, _: object) -> Message:
    return pb.ServerReadyResponse(ready=is_ready(runtime))


def _server(_: Runtime, __: object) -> Message:
    return pb.ServerMetadataResponse(
        name="swiftlet", version=build_info.version(), extensions=tensor_inference.EXTENSIONS
    )


def _model_ready(runtime: Runtime, request: object) -> Message:
    assert isinstance(request, pb.ModelReadyRequest)  # noqa: S101  # for the type checker
    tensor_inference.find(runtime, request.name, request.version)
    return pb.ModelReadyResponse(ready=is_ready(runtime))


def _model(runtime: Runtime, request: object) -> Message:
    assert isinstance(request, pb.ModelMetadataRequest)  # noqa: S101  # for the type checker
    pipeline = tensor_inference.find(runtime, request.name, request.version)
    return pb.ModelMetadataResponse(
        name=pipeline.model.manifest.name,
        versions=tensor_inference.versions_of(runtime, pipeline),
        platform="swiftlet",
        inputs=messages.metadata(tensor_inference.inputs_of(pipeline)),
        outputs=messages.metadata(tensor_inference.outputs_of(pipeline)),
    )


def _index(runtime: Runtime, _: object) -> Message:
    index = pb.RepositoryIndexResponse()
    for name, pipeline in runtime.pipelines.items():
        index.models.add(name=name, version=pipeline.version_name, state="READY")
    return index


def is_ready(runtime: Runtime) -> bool:
    """Returns whether new clients should use this server."""
    try:
        runtime.check_ready()
    except SwiftletError:
        return False
    return True


INFER: Final = "ModelInfer"
PAGES: Final[Mapping[str, Page]] = {
    "ServerLive": Page(pb.ServerLiveRequest, _live, public=True),
    "ServerReady": Page(pb.ServerReadyRequest, _ready, public=True),
    "ServerMetadata": Page(pb.ServerMetadataRequest, _server),
    "ModelReady": Page(pb.ModelReadyRequest, _model_ready),
    "ModelMetadata": Page(pb.ModelMetadataRequest, _model),
    "RepositoryIndex": Page(pb.RepositoryIndexRequest, _index),
}
