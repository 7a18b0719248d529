"""Binary messages between the service and a worker process: little-endian arrays of numbers, without pickle.

A message is the length of its body in bytes (one int64), then the body. The body of a call is int64 throughout:

    id, model, B, offsets (B + 1), focus_offsets (B + 1), candidate_offsets (B + 1), top_k (B),
    input_ids (T), token_type_ids (T), focus (N), candidates (M)

The names are those of `Batch`. `model` is an index in the order in which the worker process loaded the models. The body
of a result is int64, then float32:

    id, B, nanoseconds, shapes (B, 2) | values of all rows, one row after the other

The nanoseconds are the engine's own time. A shape is (F, O). A sequence without a row has the shape (-1, index into
`CODES`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.tokenizer import Encoding
from swiftlet_serve.errors import Internal
from swiftlet_serve.types import Batch, BatchResult, Outcome
from swiftlet_serve.workers.hosted_model import ERROR_DETAILS

HEADER_BYTES: Final = 8
CODES: Final = tuple(ERROR_DETAILS)

_INT: Final = np.dtype("<i8")
_FLOAT: Final = np.dtype("<f4")


def body_bytes(header: bytearray) -> int:
    """Returns the length of a message's body, read from its header."""
    return int.from_bytes(header[:HEADER_BYTES], "little")


def pack_call(id_: int, model: int, encodings: Sequence[Encoding]) -> bytes:
    """Encodes a call as a message with its header."""
    batch = Batch.of(encodings)
    return _message(np.concatenate([[id_, model, len(batch)], *batch.arrays]).astype(_INT, copy=False).tobytes())


def unpack_call(body: bytearray) -> tuple[int, int, Batch]:
    """Decodes the body of a call into id, model index and batch. The batch's arrays are views of the body."""
    numbers = np.frombuffer(body, _INT)
    id_, model, size = numbers[:3].tolist()
    at = 3

    def take(count: int) -> NDArray[np.int64]:
        nonlocal at
        at += count
        return numbers[at - count : at]

    offsets, focus_offsets, candidate_offsets, top_k = take(size + 1), take(size + 1), take(size + 1), take(size)
    tokens, positions, columns = int(offsets[-1]), int(focus_offsets[-1]), int(candidate_offsets[-1])
    input_ids, token_type_ids, focus, candidates = take(tokens), take(tokens), take(positions), take(columns)
    batch = Batch(input_ids, token_type_ids, offsets, focus, focus_offsets, top_k, candidates, candidate_offsets)
    return id_, model, batch


def pack_result(id_: int, result: BatchResult) -> bytes:
    """Encodes the result of a call as a message with its header."""
    outcomes, engine_s = result
    shapes = [(-1, CODES.index(one.code)) if isinstance(one, Internal) else one.shape for one in outcomes]
    rows = [np.asarray(one, _FLOAT).tobytes() for one in outcomes if not isinstance(one, Internal)]
    numbers = np.array([id_, len(outcomes), round(1e9 * engine_s), *(n for shape in shapes for n in shape)], _INT)
    return _message(numbers.tobytes(), *rows)


def unpack_result(body: memoryview) -> tuple[int, BatchResult]:
    """Decodes the body of a result into the call's id and its result. Rows are copies, not views."""
    id_, size, nanoseconds = np.frombuffer(body, _INT, 3).tolist()
    shapes = np.frombuffer(body, _INT, 2 * size, 3 * _INT.itemsize).reshape(size, 2).tolist()
    outcomes: list[Outcome] = []
    at = (3 + 2 * size) * _INT.itemsize
    for rows, width in shapes:
        if rows < 0:
            outcomes.append(Internal(CODES[width], ERROR_DETAILS[CODES[width]]))
            continue
        values: NDArray[np.float32] = np.frombuffer(body, _FLOAT, rows * width, at)
        outcomes.append(values.reshape(rows, width).astype(np.float32))
        at += values.nbytes
    return id_, BatchResult(outcomes, 1e-9 * nanoseconds)


def _message(*parts: bytes) -> bytes:
    return b"".join([sum(map(len, parts)).to_bytes(HEADER_BYTES, "little"), *parts])
