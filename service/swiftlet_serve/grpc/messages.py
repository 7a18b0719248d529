"""Protocol buffers of the Open Inference Protocol, as tensors and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from swiftlet_serve.errors import InvalidRequest, invalid_value
from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.http.dialect_parts import tensors
from swiftlet_serve.http.dialect_parts.tensor_inference import (
    MAX_INPUTS,
    OUTPUT,
    OUTPUT_PARAMETERS,
    Scalar,
    Slot,
)
from swiftlet_serve.http.dialect_parts.tensors import Tensor
from swiftlet_serve.http.endpoints.bodies import too_many_items

MessageT = TypeVar("MessageT", bound=Message)

MAX_FIELDS: Final = 4096
"""Fields of a message and of its inputs and outputs together. The parser makes an object of each, up to 100 ns long."""
NUMBER, BYTES = 0, 2
"""Kinds of fields, by the lowest three bits of their tags. Those of the kinds below have a fixed size."""
FIXED_BYTES: Final = {1: 8, 5: 4}
NESTED: Final = [number << 3 | BYTES for number in (5, 6)]
"""Tags of the inputs and outputs of a request."""

CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field that holds the values of a datatype. FP16 has no field and is always packed."""


def parse(kind: type[MessageT], data: bytes | bytearray) -> MessageT:
    """Returns a message of this type.

    Raises:
        InvalidRequest: the data is no such message.
        Unprocessable: it has too many fields.
    """
    if len(data) > MAX_FIELDS and _has_many_fields(data):
        raise too_many_items(MAX_FIELDS)
    message = kind()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError:
        raise InvalidRequest("bad_framing", f"The message is not a valid {kind.DESCRIPTOR.name}.") from None
    return message


def _has_many_fields(data: bytes | bytearray) -> bool:
    """Returns whether a message has more than `MAX_FIELDS` fields. The parser itself would block all threads meanwhile.

    Of an invalid message, the fields before the first error count: those that the parser would read.
    """
    nested: list[tuple[int, int]] = []  # starts and ends of the inputs and outputs
    is_nested, at, end = False, 0, len(data)
    for _ in range(MAX_FIELDS + 1):
        while at >= end:
            if not nested:
                return False
            is_nested, (at, end) = True, nested.pop()
        tag, at = _number(data, at)
        kind = tag & 7
        if kind == BYTES:
            size, at = _number(data, at)
            if tag in NESTED and not is_nested:
                nested.append((at, min(at + size, end)))
            at += size
        elif kind == NUMBER:
            at = _number(data, at)[1]
        else:
            at += FIXED_BYTES.get(kind, 0)
    return True


def _number(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Returns the number of variable length at a place, and the place behind it: the end, if the data is cut off."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    return 0, len(data)


def parameters(fields: Mapping[str, pb.InferParameter]) -> dict[str, Scalar]:
    """Returns the parameters of a message. One without a value is left out."""
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in fields.items()}
    return {name: getattr(value, kind) for name, (value, kind) in chosen.items() if kind is not None}


def input_tensors(request: pb.ModelInferRequest) -> Iterator[Tensor]:
    """Returns the input tensors of a request.

    Raises:
        InvalidRequest: values have another place or length than the request declares, or a text is not UTF-8.
        Unprocessable: the number of inputs is not allowed, or a tensor is invalid.
    """
    if not 1 <= len(request.inputs) <= MAX_INPUTS:
        code, limit = ("too_long", MAX_INPUTS) if request.inputs else ("too_short", 1)
        detail = f"A request has 1 to {MAX_INPUTS} inputs."
        raise invalid_value("/inputs", code, detail, limit)
    packed = request.raw_input_contents
    if packed and (len(packed) != len(request.inputs) or any(tensor.HasField("contents") for tensor in request.inputs)):
        raise InvalidRequest("bad_framing", "raw_input_contents does not have the values of every input.")
    for i, tensor in enumerate(request.inputs):
        pointer = f"/inputs/{i}"
        if packed:
            yield tensors.from_bytes(tensor.name, tensor.datatype, tensor.shape, memoryview(packed[i]), pointer)
        else:
            yield tensors.from_json(tensor.name, tensor.datatype, tensor.shape, _contents(tensor, pointer), pointer)


def _contents(tensor: pb.ModelInferRequest.InferInputTensor, pointer: str) -> Sequence[object]:
    """Returns the values of a tensor that are not packed.

    Raises:
        InvalidRequest: the values are in a field of another datatype, or a text is not UTF-8.
        Unprocessable: there are too many.
    """
    fields = {field.name: values for field, values in tensor.contents.ListFields()}
    values = fields.pop(CONTENTS.get(tensor.datatype, ""), ())
    if fields:
        raise InvalidRequest("bad_framing", "The values of an input are in a field of another datatype.")
    tensors.check_size(len(values), pointer)
    if tensor.datatype != "BYTES":
        return list(values)
    try:
        return [str(value, "utf-8") for value in values]
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_utf8", "A text is not valid UTF-8. Encode it as UTF-8.") from None


def response(name: str, version: str, request_id: str, outputs: Iterable[Tensor]) -> pb.ModelInferResponse:
    """Returns a response. Its values are packed, since Triton's client reads no others of some types."""
    message = pb.ModelInferResponse(model_name=name, model_version=version, id=request_id)
    for tensor in outputs:
        output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.name == OUTPUT:
            for key, value in OUTPUT_PARAMETERS.items():
                output.parameters[key].string_param = value
        message.raw_output_contents.append(tensors.to_bytes(tensor))
    return message


def metadata(slots: Iterable[Slot]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    """Returns the descriptions of inputs or outputs."""
    described = pb.ModelMetadataResponse.TensorMetadata
    return [described(name=slot.name, datatype=slot.datatype, shape=slot.shape) for slot in slots]
