"""What is said between the service and its engine process: arrays of numbers, little-endian, and no pickle.

A message is its length in bytes as one int64, then that many bytes. A call is int64 throughout:

    id, model, B, offsets (B + 1), focus_offsets (B + 1), candidate_offsets (B + 1), top_k (B),
    input_ids (T), token_type_ids (T), focus (N), candidates (M)

The names are those of `Batch`; `model` counts the models in the order in which they were hosted. Its answer is int64,
then float32:

    id, B, nanoseconds, shapes (B, 2) | the numbers of all rows, one after the other

The nanoseconds are those that the engine took. A shape is (F, O); where an encoding has no row it is (-1, which of
`CODES` says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import Internal
from swiftlet_serve.service.types import Batch, BatchResult, Outcome
from swiftlet_serve.service.workers.executor import FAULTS

HEAD_BYTES: Final = 8
CODES: Final = tuple(FAULTS)

_INT: Final = np.dtype("<i8")
_FLOAT: Final = np.dtype("<f4")


def length_of(head: bytearray) -> int:
    """How many bytes follow the head of a message."""
    return int.from_bytes(head[:HEAD_BYTES], "little")


def pack_call(id_: int, model: int, encodings: Sequence[Encoding]) -> bytes:
    """A call, head included."""
    batch = Batch.of(encodings)
    return _message(np.concatenate([[id_, model, len(batch)], *batch.arrays]).astype(_INT, copy=False).tobytes())


def unpack_call(message: bytearray) -> tuple[int, int, Batch]:
    """The id, the model and the batch of a call without its head. Its arrays are views of the message."""
    numbers = np.frombuffer(message, _INT)
    id_, model, size = numbers[:3].tolist()
    at = 3

    def take(count: int) -> NDArray[np.int64]:
        nonlocal at
        at += count
        return numbers[at - count : at]

    offsets, focus_offsets, candidate_offsets, top_k = take(size + 1), take(size + 1), take(size + 1), take(size)
    tokens, read, choices = int(offsets[-1]), int(focus_offsets[-1]), int(candidate_offsets[-1])
    input_ids, token_type_ids, focus, candidates = take(tokens), take(tokens), take(read), take(choices)
    return (
        id_,
        model,
        Batch(input_ids, token_type_ids, offsets, focus, focus_offsets, top_k, candidates, candidate_offsets),
    )


def pack_answer(id_: int, ran: BatchResult) -> bytes:
    """An answer, head included."""
    outcomes, engine_s = ran
    shapes = [(-1, CODES.index(one.code)) if isinstance(one, Internal) else one.shape for one in outcomes]
    rows = [np.asarray(one, _FLOAT).tobytes() for one in outcomes if not isinstance(one, Internal)]
    numbers = np.array([id_, len(outcomes), round(1e9 * engine_s), *(n for shape in shapes for n in shape)], _INT)
    return _message(numbers.tobytes(), *rows)


def unpack_answer(message: memoryview) -> tuple[int, BatchResult]:
    """The id of an answer without its head, and what the call came to. Rows are copies, not views."""
    id_, size, nanoseconds = np.frombuffer(message, _INT, 3).tolist()
    shapes = np.frombuffer(message, _INT, 2 * size, 3 * _INT.itemsize).reshape(size, 2).tolist()
    outcomes: list[Outcome] = []
    at = (3 + 2 * size) * _INT.itemsize
    for rows, width in shapes:
        if rows < 0:
            outcomes.append(Internal(CODES[width], FAULTS[CODES[width]]))
            continue
        numbers: NDArray[np.float32] = np.frombuffer(message, _FLOAT, rows * width, at)
        outcomes.append(numbers.reshape(rows, width).astype(np.float32))
        at += numbers.nbytes
    return id_, BatchResult(outcomes, 1e-9 * nanoseconds)


def _message(*parts: bytes) -> bytes:
    return b"".join([sum(map(len, parts)).to_bytes(HEAD_BYTES, "little"), *parts])
