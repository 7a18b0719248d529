"""Tensors of the Open Inference Protocol: flat lists of values with a shape, as JSON or as bytes.

The bytes of a BYTES element are a length, four bytes in little endian, and the content. Other types are packed in
little endian. Sizes that a request declares are compared with what it holds before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from swiftlet_serve.errors import InvalidRequest, invalid_value
from swiftlet_serve.types.body_model import BodyModel

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
}
LENGTH: Final = struct.Struct("<I")  # of a text, in bytes
MAX_DIMENSIONS: Final = 8


class Tensor(NamedTuple):
    """A tensor. Texts have the type BYTES."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: Sequence[Any]


def from_json(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any], pointer: str) -> Tensor:
    """Returns a tensor whose values are a list, flat or nested.

    Raises:
        Unprocessable: the values do not have the type or the number that the request declares.
    """
    if datatype == "BYTES" and shape == [len(data)] and all(type(value) is str for value in data):  # the usual tensor
        return Tensor(name, datatype, shape, data)
    values = _flatten(data, len(shape), pointer)
    expected = _python_type(datatype, pointer)
    if not all(type(value) in expected for value in values):
        _refuse(
            f"{pointer}/data",
            "wrong_datatype",
            "An input has values of another type than its datatype. Correct one of the two.",
        )
    _check_count(shape, len(values), pointer)
    return Tensor(name, datatype, shape, values)


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: memoryview, pointer: str) -> Tensor:
    """Returns a tensor whose values are packed.

    Raises:
        InvalidRequest: the bytes do not hold a tensor of this type, or a text is not UTF-8.
        Unprocessable: the type is unknown, or the number of values differs from the shape.
    """
    _python_type(datatype, pointer)
    if datatype == "BYTES":
        values: Sequence[Any] = _unpack_texts(data, pointer)
    else:
        dtype = DTYPES[datatype]
        if len(data) % dtype.itemsize:
            raise _bad_framing()
        check_size(len(data) // dtype.itemsize, pointer)
        values = np.frombuffer(data, dtype).tolist()
    _check_count(shape, len(values), pointer)
    return Tensor(name, datatype, shape, values)


def to_bytes(tensor: Tensor) -> bytes:
    """Returns the values of a tensor, packed."""
    if tensor.datatype != "BYTES":
        return np.asarray(tensor.values, DTYPES[tensor.datatype]).tobytes()
    texts = [value.encode() for value in tensor.values]
    return b"".join([LENGTH.pack(len(text)) + text for text in texts])


def check_size(values: int, pointer: str) -> None:
    """Raises Unprocessable if a tensor has more values than a body in JSON may have items."""
    if values > BodyModel.max_items:
        detail = f"An input has more than {BodyModel.max_items} values. Send fewer in one request."
        raise invalid_value(f"{pointer}/shape", "too_many_items", detail, BodyModel.max_items)


def _unpack_texts(data: memoryview, pointer: str) -> list[str]:
    packed = bytes(data)  # slices of bytes are quicker than slices of a view
    texts: list[str] = []
    at, size = 0, len(packed)
    while at < size:
        check_size(len(texts), pointer)
        start = at + 4
        at = start + int.from_bytes(packed[at:start], "little")
        if start > size or at > size:
            raise _bad_framing()
        try:
            texts.append(packed[start:at].decode())
        except UnicodeDecodeError:
            raise InvalidRequest("invalid_utf8", "A text is not valid UTF-8. Encode it as UTF-8.") from None
    return texts


def _flatten(data: Sequence[Any], depth: int, pointer: str) -> list[Any]:
    """Returns the values of a list that is flat or nested as the shape. It may not be nested any deeper."""
    values = list(data)
    for _ in range(min(depth, MAX_DIMENSIONS) - 1):
        if not values or not all(isinstance(value, list) for value in values):
            break
        values = [item for value in values for item in value]
    if any(isinstance(value, list | dict) for value in values):
        _refuse(
            f"{pointer}/data", "wrong_shape", "An input is nested deeper than its shape, or unevenly. Send a flat list."
        )
    return values


def _python_type(datatype: str, pointer: str) -> tuple[type, ...]:
    if datatype == "BYTES":
        return (str,)
    if datatype not in DTYPES:
        _refuse(f"{pointer}/datatype", "unknown_datatype", "An input has an unknown datatype. Use BYTES for texts.")
    return {"b": (bool,), "u": (int,), "i": (int,), "f": (int, float)}[DTYPES[datatype].kind]


def _check_count(shape: Sequence[int], count: int, pointer: str) -> None:
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape) or math.prod(shape) != count:
        _refuse(
            f"{pointer}/shape",
            "wrong_shape",
            "The shape of an input does not match the number of its values. Correct it.",
        )


def _refuse(pointer: str, code: str, detail: str) -> NoReturn:
    raise invalid_value(pointer, code, detail)


def _bad_framing() -> InvalidRequest:
    return InvalidRequest(
        "bad_framing", "The binary data is shorter or longer than the request declares. Declare its length in bytes."
    )
