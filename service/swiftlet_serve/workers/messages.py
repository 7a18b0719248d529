"""Binary messages between the service and a worker process.

A message is the length of its body in bytes (uint64), then the body, whose numbers are little-endian:

    call      id (int64), model, B (uint64), sequences
    result    id (int64), nanoseconds, nanoseconds of help, B (uint64), rows

`model` is an index in the order of loading in the worker process. The nanoseconds are the time of the engine alone,
and the time of other cores that helped.
`types.codec` describes the B sequences and rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import Batch, BatchResult, codec

HEADER_BYTES: Final = 8
# The first numbers of a body, and the same behind the header.
_CALL: Final = struct.Struct("<qQQ")
_CALL_MESSAGE: Final = struct.Struct("<QqQQ")
_RESULT: Final = struct.Struct("<qQQQ")
_RESULT_MESSAGE: Final = struct.Struct("<QqQQQ")


def body_bytes(header: bytearray) -> int:
    """Returns the length of a message's body, read from its header."""
    return int.from_bytes(header[:HEADER_BYTES], "little")


def pack_call(id_: int, model: int, encodings: Sequence[Encoding]) -> bytes:
    """Encodes a call as a message with its header."""
    sequences = codec.pack_sequences(encodings)
    return _CALL_MESSAGE.pack(_CALL.size + len(sequences), id_, model, len(encodings)) + sequences


def unpack_call(body: bytearray) -> tuple[int, int, Batch]:
    """Decodes the body of a call into id, model index and batch. The batch's arrays are views of the body."""
    id_, model, size = _CALL.unpack_from(body)
    return id_, model, codec.unpack_batch(body, size, _CALL.size)


def pack_result(id_: int, result: BatchResult) -> bytes:
    """Encodes the result of a call as a message with its header."""
    rows = codec.pack_rows(result.outcomes)
    times = round(1e9 * result.engine_s), round(1e9 * result.helped_s)
    return _RESULT_MESSAGE.pack(_RESULT.size + len(rows), id_, *times, len(result.outcomes)) + rows


def unpack_result(body: memoryview) -> tuple[int, BatchResult]:
    """Decodes the body of a result into the call's id and its result. Rows are copies, not views.

    Raises:
        ValueError, IndexError, struct.error: the body is invalid.
    """
    id_, nanoseconds, helped, size = _RESULT.unpack_from(body)
    return id_, BatchResult(codec.unpack_rows(body, size, _RESULT.size), 1e-9 * nanoseconds, 1e-9 * helped)
