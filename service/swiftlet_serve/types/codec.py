"""Sequences and rows as bytes, for messages between processes: little-endian arrays of numbers, without pickle.

Sequences are L, F, M, top_k, `attended` and `head` (uint32) of each sequence, then the input ids, token types, focus
positions and candidates (int64) of all sequences, one kind after the other. `Batch` has the same names.

Rows are the shape (2 int32) of each row, then the values (float32) of all rows, one row after the other. A shape is
(F, O). A sequence without a row has the shape (-1, index into `CODES`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal
from swiftlet_serve.types.batch import Batch
from swiftlet_serve.types.executor import Outcome
from swiftlet_serve.types.topk import NOTHING, Ranked, Scored

ERROR_DETAILS: Final = {
    "internal": "The model failed on this input.",
    "invalid_engine_output": "The model returned an invalid result for this input.",
}
"""Reasons why a sequence has no row: codes of `Internal`, each with its detail."""
CODES: Final = tuple(ERROR_DETAILS)

_SEQUENCE: Final = struct.Struct("<6I")
_SHAPE: Final = struct.Struct("<2i")
_COUNT: Final = np.dtype("<u4")
_INT: Final = np.dtype("<i8")
_FLOAT: Final = np.dtype("<f4")


def pack_sequences(sequences: Sequence[Encoding]) -> bytes:
    """Encodes sequences, whose arrays are contiguous.

    Raises:
        ValueError: an array does not hold int64, or those of a sequence differ in length.
    """
    numbers = 0
    shapes, ids, types, focus, candidates = list[Any](), list[Any](), list[Any](), list[Any](), list[Any]()
    for sequence in sequences:
        top_k, chosen = 0, NOTHING
        if isinstance(sequence, Ranked):
            top_k, chosen = sequence.top_k, sequence.candidates
        elif isinstance(sequence, Scored):
            chosen = sequence.targets
        counts = len(sequence.input_ids), len(sequence.focus), len(chosen)
        numbers += 2 * counts[0] + counts[1] + counts[2]
        shapes.append(_SEQUENCE.pack(*counts, top_k, sequence.attends_to, sequence.head))
        ids.append(sequence.input_ids)
        types.append(sequence.token_type_ids)
        focus.append(sequence.focus)
        if len(chosen):
            candidates.append(chosen)
    body = b"".join([*shapes, *ids, *types, *focus, *candidates])  # without a copy of each array
    if len(body) != len(shapes) * _SEQUENCE.size + numbers * _INT.itemsize:
        raise ValueError("The arrays of a sequence do not hold as many int64 as its tokens.")
    return body


def unpack_batch(body: bytearray, size: int, at: int) -> Batch:
    """Decodes `size` sequences as a batch, from the position `at` to the end. Its arrays are views of the body."""
    counts: NDArray[np.uint32] = np.frombuffer(body, _COUNT, 6 * size, at).reshape(size, 6).T
    offsets = np.zeros((3, size + 1), np.int64)
    counts[:3].cumsum(1, out=offsets[:, 1:])
    numbers: NDArray[np.int64] = np.frombuffer(body, _INT, offset=at + size * _SEQUENCE.size)
    tokens, positions = offsets[:2, -1].tolist()
    rest = numbers[2 * tokens :]
    return Batch(
        numbers[:tokens],
        numbers[tokens : 2 * tokens],
        offsets[0],
        rest[:positions],
        offsets[1],
        counts[3].astype(np.int64),
        rest[positions:],
        offsets[2],
        counts[4].astype(np.int64),
        counts[5].astype(np.int64),
    )


def unpack_sequences(body: memoryview, size: int, at: int) -> list[Encoding]:
    """Decodes `size` sequences, from the position `at` to the end. Their arrays are views of the body.

    Raises:
        ValueError, struct.error: the body does not hold them.
    """
    start = at + size * _SEQUENCE.size
    shapes = list(_SEQUENCE.iter_unpack(body[at:start]))
    numbers: NDArray[np.int64] = np.frombuffer(body, _INT, offset=start)
    tokens = sum([shape[0] for shape in shapes])
    token, position = 0, 2 * tokens
    column = position + sum([shape[1] for shape in shapes])
    sequences: list[Encoding] = []
    for length, focused, chosen, top_k, attended, head in shapes:
        if not length:
            raise ValueError("A sequence is empty.")
        if not 0 < attended <= length:
            raise ValueError("A sequence attends to no tokens, or to more than it has.")
        ids, types = numbers[token : token + length], numbers[tokens + token : tokens + token + length]
        focus, candidates = numbers[position : position + focused], numbers[column : column + chosen]
        token, position, column = token + length, position + focused, column + chosen
        parts, keys = (ids, types, focus), None if attended == length else attended
        about: dict[str, Any] = {"attended": keys, "head": head}
        if top_k:
            sequences.append(Ranked(*parts, top_k, candidates, **about))
        elif chosen:
            sequences.append(Scored(*parts, candidates, **about))
        else:
            sequences.append(Encoding(*parts, **about))
    if len(shapes) != size or column != len(numbers):
        raise ValueError("The length of the sequences is wrong.")
    return sequences


def pack_rows(outcomes: Sequence[Outcome]) -> bytes:
    """Encodes the outcomes of sequences."""
    shapes, rows = [], []
    for outcome in outcomes:
        if isinstance(outcome, Internal):
            shapes.append(_SHAPE.pack(-1, CODES.index(outcome.code)))
        else:
            shapes.append(_SHAPE.pack(*outcome.shape))
            rows.append(np.asarray(outcome, _FLOAT).tobytes())
    return b"".join([*shapes, *rows])


def unpack_rows(body: memoryview, size: int, at: int) -> list[Outcome]:
    """Decodes the outcomes of `size` sequences, from the position `at` to the end. Rows are copies, not views.

    Raises:
        ValueError, IndexError, struct.error: the body does not hold them.
    """
    outcomes: list[Outcome] = []
    start = at + size * _SHAPE.size
    values: NDArray[np.float32] = np.frombuffer(body[start:], _FLOAT)
    end = 0
    for rows, width in _SHAPE.iter_unpack(body[at:start]):
        if rows < 0:
            outcomes.append(Internal(CODES[width], ERROR_DETAILS[CODES[width]]))
            continue
        first, end = end, end + rows * width
        outcomes.append(values[first:end].reshape(rows, width).astype(np.float32))
    if end != len(values) or len(outcomes) != size:
        raise ValueError("The length of the rows is wrong.")
    return outcomes
