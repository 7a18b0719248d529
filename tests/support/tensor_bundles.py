"""Writes checkpoints of TensorFlow, and names the parameters of transformers as Google's code names its variables.

TensorFlow 2.21.0 read what this wrote, and wrote what the tests of the reader read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.graphs.protobuf import field, key, number_field, varint

Arrays = Mapping[str, NDArray[Any]]

KINDS: Final = {"float32": 1, "float64": 2, "int32": 3, "int8": 6, "int64": 9, "float16": 19}
STRING: Final = 7
MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_TABLE: Final = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (byte & 1) * 0x82F63B78
    _TABLE.append(byte)


def checksum(data: bytes) -> int:
    """Returns the masked CRC-32C, computed byte by byte."""
    state = 0xFFFFFFFF
    for byte in data:
        state = _TABLE[(state ^ byte) & 255] ^ state >> 8
    state ^= 0xFFFFFFFF
    return ((state >> 15 | state << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fixed(number: int, value: int) -> bytes:
    """Encodes a field of four bytes."""
    return key(number, 5) + struct.pack("<I", value)


def entry(kind: int, shape: Iterable[int], offset: int, size: int, crc: int, *, file: int = 0) -> bytes:
    """Encodes a BundleEntryProto."""
    dimensions = b"".join(field(2, number_field(1, dimension)) for dimension in shape)
    places = number_field(3, file) + number_field(4, offset) + number_field(5, size)
    return number_field(1, kind) + field(2, dimensions) + places + fixed(6, crc)


def header(files: int = 1, **fields: int) -> bytes:
    """Encodes a BundleHeaderProto."""
    return number_field(1, files) + number_field(2, fields.get("endianness", 0)) + field(3, number_field(1, 1))


def table(
    values: Mapping[bytes, bytes], *, per_block: int = 16, compressed: bool = False, repeat: bool = False
) -> bytes:
    """Encodes a sorted table of LevelDB. With `repeat`, the index names the last block twice."""
    content, handles = bytearray(), dict[bytes, bytes]()

    def add(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
        block, last = b"", b""
        for name, value in entries:
            shared = next((i for i, (a, b) in enumerate(zip(name, last, strict=False)) if a != b), len(last))
            shared = min(shared, len(name))
            block += varint(shared) + varint(len(name) - shared) + varint(len(value)) + name[shared:] + value
            last = name
        block += struct.pack("<II", 0, 1)
        place = varint(len(content)) + varint(len(block))
        kind = bytes([compressed])
        content.extend(block + kind + struct.pack("<I", checksum(block + kind)))
        return place

    items = sorted(values.items())
    for at in range(0, len(items), per_block):
        part = items[at : at + per_block]
        handles[part[-1][0]] = add(part)
    if repeat:
        handles[items[-1][0] + b"+"] = handles[items[-1][0]]
    footer = add([]) + add(handles.items())
    return bytes(content) + footer.ljust(40, b"\0") + MAGIC


def write_bundle(prefix: Path, arrays: Arrays, *, files: int = 1, **options: Any) -> None:
    """Writes a checkpoint. `files` of data have the arrays in turn; `options` are those of `table`."""
    values: dict[bytes, bytes] = {b"": header(files)}
    datas = [bytearray() for _ in range(files)]
    for index, name in enumerate(sorted(arrays)):
        array, number = arrays[name], index % files
        data = np.ascontiguousarray(array).tobytes()
        place = len(datas[number]), len(data), checksum(data)
        values[name.encode()] = entry(KINDS[str(array.dtype)], array.shape, *place, file=number)
        datas[number] += data
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(values, **options))
    for number, content in enumerate(datas):
        prefix.with_name(f"{prefix.name}.data-{number:05}-of-{files:05}").write_bytes(content)


# The names of Google's variables, as patterns of the names in transformers, applied in order.
_NAMES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "bert": (),
    "albert": (
        (r"^albert/", "bert/"),
        (r"/albert_layer_groups/(\d+)/albert_layers/(\d+)/", r"/transformer/group_\1/inner_group_\2/"),
        (r"/attention/(query|key|value)/", r"/attention_1/self/\1/"),
        (r"/attention/dense/", "/attention_1/output/dense/"),
        (r"/attention/LayerNorm/", "/LayerNorm/"),
        (r"/full_layer_layer_norm/", "/LayerNorm_1/"),
        (r"/ffn/", "/ffn_1/intermediate/dense/"),
        (r"/ffn_output/", "/ffn_1/intermediate/output/dense/"),
        (r"/pooler/", "/pooler/dense/"),
        (r"^predictions/(dense|LayerNorm)/", r"cls/predictions/transform/\1/"),
        (r"^predictions/", "cls/predictions/"),
        (r"^sop_classifier/classifier/", "cls/seq_relationship/"),
    ),
    "mobilebert": (
        (r"^mobilebert/", "bert/"),
        (r"/ffn/(\d+)/", r"/ffn_layer_\1/"),
        (r"^(bert/.*)/LayerNorm/", r"\1/FakeLayerNorm/"),
        (r"^cls/predictions/dense/weight$", "cls/predictions/extra_output_weights"),
    ),
    "electra": (
        (r"^generator_lm_head/bias$", "generator_predictions/output_bias"),
        (r"^discriminator_predictions/dense_prediction/", "discriminator_predictions/dense_1/"),
    ),
}
_OUTPUTS: Final = r"^(classifier/|qa_outputs/|cls/seq_relationship/|cls/predictions/)"


def google_variables(network: str, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns the parameters of a model of transformers as Google's code stores them."""
    variables = {}
    for own, tensor in tensors.items():
        name, array = own.replace(".", "/"), np.asarray(tensor)
        if re.search(r"decoder|position_ids|generator_lm_head\.weight", own):  # which repeat others
            continue
        for pattern, replacement in _NAMES[network]:
            name = re.sub(pattern, replacement, name)
        name = re.sub(r"/layer/(\d+)/", r"/layer_\1/", name)
        name = re.sub(r"Norm(_1)?/weight$", r"Norm\1/gamma", re.sub(r"Norm(_1)?/bias$", r"Norm\1/beta", name))
        name = re.sub(r"_embeddings/weight$", "_embeddings", name)
        name = re.sub(_OUTPUTS + "(weight|bias)$", r"\1output_\2", name).replace("output_weight", "output_weights")
        name = re.sub(r"^qa_outputs/", "cls/squad/", re.sub("^classifier/", "", name)).replace("weightss", "weights")
        if name.endswith("/weight"):
            name = f"{name.removesuffix('weight')}kernel"
        variables[name] = array.T if name.endswith(("/kernel", "/extra_output_weights")) else array
    return variables
