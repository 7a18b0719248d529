"""Binary messages between a front and the coordinator, in little-endian numbers and without pickle.

A message is a header and a body. The header is the length of the message in bytes (uint32), its `Kind` (uint32) and the
number of the request (uint64), which the front gives. The bodies:

    SUBMIT    model, priority (uint32), deadline (float64), B, bytes of the client's name (uint32);
              L, F, C, top_k (uint32) of each sequence; ids (L), token types (L), focus (F), candidates (C) (int64) of
              each sequence; the client's name
    RESULT    B, size of the largest batch (uint32); start and end of the stages queue, batch and infer (6 float64,
              NaN without a row); shape (2 int32) of each row; values (float32) of all rows. A sequence without a row
              has the shape (-1, index into `codec.CODES`).
    REFUSED   seconds for Retry-After (float64, NaN without), code and detail as text with a NUL byte between them
    CHARGE    the client's name
    others    JSON, or nothing

Times are those of `time.monotonic()`, which all processes of a Linux machine share.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic_core import from_json, to_json

from swiftlet_models.tokenizer import Encoding
from swiftlet_serve.errors import Internal, SwiftletError
from swiftlet_serve.telemetry.request_record import RequestRecord, Span, Stage
from swiftlet_serve.types import Deadline, Outcome, Priority
from swiftlet_serve.types.topk import NOTHING, Ranked, Scored
from swiftlet_serve.workers.codec import CODES
from swiftlet_serve.workers.hosted_model import ERROR_DETAILS


class Kind(enum.IntEnum):
    """The kinds of messages. F: from a front, C: from the coordinator."""

    SUBMIT = 1  # F: runs a request
    CANCEL = 2  # F: the client has gone, or the deadline has passed
    CHARGE = 3  # F: a request that never was submitted counts for the client's rate limit
    ADMITTED = 4  # C: the request is queued
    REFUSED = 5  # C: the request is not admitted, or has failed; also the answer to a CHARGE beyond the limit
    RESULT = 6  # C: the rows of the request
    READY = 7  # F: the front can open its socket, which has this URL
    OPEN = 8  # C: accept connections
    STATS = 9  # both: the front's statistics, and the request for them
    SNAPSHOT = 10  # both: the state of the server, and the request for it
    TITLES = 11  # C: the titles of the engines
    ADOPT = 12  # C: accept the connections of a front that is lost
    DISOWN = 13  # C: accept them no more
    LEAVE = 14  # C: the server stops soon
    CLOSE = 15  # C: answer what is in progress, and exit
    ABORT = 16  # C: cancel what is in progress, and exit
    RELOAD = 17  # C: reload the API keys and the certificate


HEADER: Final = struct.Struct("<IIQ")
MAX_BYTES: Final = 1 << 28

_SUBMIT: Final = struct.Struct("<IIdII")
_SEQUENCE: Final = struct.Struct("<IIII")
_RESULT: Final = struct.Struct("<II6d")
_SHAPE: Final = struct.Struct("<ii")
_DELAY: Final = struct.Struct("<d")
_INT: Final = np.dtype("<i8")
_FLOAT: Final = np.dtype("<f4")
_PRIORITIES: Final[tuple[Priority, ...]] = ("interactive", "bulk")
_STAGES: Final[tuple[Stage, ...]] = ("queue", "batch", "infer")
_NO_SPANS: Final = (math.nan,) * 6
_ERRORS: Final = {code: kind for kind in SwiftletError.__subclasses__() for code in kind.codes}


class Submission(NamedTuple):
    """The body of a SUBMIT."""

    model: int  # index of the model
    encodings: list[Encoding]
    deadline: Deadline
    priority: Priority
    client: str  # for its share of the engine, and the rate limit


class Result(NamedTuple):
    """The body of a RESULT."""

    outcomes: list[Outcome]  # one for each sequence
    stages: dict[Stage, Span]
    batch_size: int


def pack(kind: Kind, number: int = 0, body: bytes = b"") -> bytes:
    """Encodes a message."""
    return HEADER.pack(HEADER.size + len(body), kind, number) + body


def pack_json(kind: Kind, value: object, number: int = 0) -> bytes:
    """Encodes a message whose body is JSON."""
    return pack(kind, number, to_json(value))


def unpack_json(body: memoryview) -> Any:
    """Decodes a body in JSON.

    Raises:
        ValueError: it is none.
    """
    return from_json(bytes(body))


def pack_submission(number: int, submission: Submission) -> bytes:
    """Encodes a request."""
    model, encodings, deadline, priority, client = submission
    name, shapes, arrays = client.encode(), b"", []
    for encoding in encodings:
        top_k, candidates = 0, NOTHING
        if isinstance(encoding, Ranked):
            top_k, candidates = encoding.top_k, encoding.candidates
        elif isinstance(encoding, Scored):
            candidates = encoding.targets
        parts = encoding.input_ids, encoding.token_type_ids, encoding.focus, candidates
        shapes += _SEQUENCE.pack(len(parts[0]), len(parts[2]), len(candidates), top_k)
        arrays += [part.astype(_INT, copy=False).tobytes() for part in parts]
    head = _SUBMIT.pack(model, _PRIORITIES.index(priority), deadline, len(encodings), len(name))
    return pack(Kind.SUBMIT, number, b"".join([head, shapes, *arrays, name]))


def unpack_submission(body: memoryview) -> Submission:
    """Decodes a request. The arrays of its encodings are views of the body.

    Raises:
        ValueError, struct.error: the body is invalid.
    """
    model, priority, deadline, size, name_bytes = _SUBMIT.unpack_from(body)
    if priority >= len(_PRIORITIES) or not math.isfinite(deadline) or not size:
        raise ValueError("The head of the request is invalid.")
    at = _SUBMIT.size + size * _SEQUENCE.size
    encodings: list[Encoding] = []
    for length, focused, chosen, top_k in _SEQUENCE.iter_unpack(body[_SUBMIT.size : at]):
        if not length:
            raise ValueError("A sequence is empty.")
        ids = np.frombuffer(body, _INT, length, at)
        types = np.frombuffer(body, _INT, length, at + 8 * length)
        focus = np.frombuffer(body, _INT, focused, at + 16 * length) if focused else NOTHING
        candidates = np.frombuffer(body, _INT, chosen, at + 16 * length + 8 * focused) if chosen else NOTHING
        at += 8 * (2 * length + focused + chosen)
        if top_k:
            encodings.append(Ranked(ids, types, focus, top_k, candidates))
        else:
            encodings.append(Scored(ids, types, focus, candidates) if chosen else Encoding(ids, types, focus))
    if at + name_bytes != len(body) or len(encodings) != size:
        raise ValueError("The length of the request is wrong.")
    return Submission(model, encodings, deadline, _PRIORITIES[priority], bytes(body[at:]).decode())


def pack_result(number: int, outcomes: Sequence[Outcome], record: RequestRecord) -> bytes:
    """Encodes the outcomes of a request's sequences, with the stages of its record."""
    spans = [time for stage in _STAGES for time in record.stages[stage]] if record.stages else _NO_SPANS
    parts = [_RESULT.pack(len(outcomes), record.batch_size, *spans)]
    shapes = [(-1, CODES.index(one.code)) if isinstance(one, Internal) else one.shape for one in outcomes]
    parts += [_SHAPE.pack(*shape) for shape in shapes]
    parts += [one.astype(_FLOAT, copy=False).tobytes() for one in outcomes if not isinstance(one, Internal)]
    return pack(Kind.RESULT, number, b"".join(parts))


def unpack_result(body: memoryview) -> Result:
    """Decodes the outcomes of a request's sequences. Rows are copies, not views.

    Raises:
        ValueError, IndexError, struct.error: the body is invalid.
    """
    size, batch_size, *times = _RESULT.unpack_from(body)
    stages: dict[Stage, Span] = {}
    if not math.isnan(times[0]):
        stages = {stage: Span(times[2 * i], times[2 * i + 1]) for i, stage in enumerate(_STAGES)}
    at = _RESULT.size + size * _SHAPE.size
    outcomes: list[Outcome] = []
    for rows, width in _SHAPE.iter_unpack(body[_RESULT.size : at]):
        if rows < 0:
            outcomes.append(Internal(CODES[width], ERROR_DETAILS[CODES[width]]))
            continue
        outcomes.append(np.frombuffer(body, _FLOAT, rows * width, at).reshape(rows, width).astype(np.float32))
        at += 4 * rows * width
    if at != len(body) or len(outcomes) != size:
        raise ValueError("The length of the result is wrong.")
    return Result(outcomes, stages, batch_size)


def pack_error(number: int, error: SwiftletError) -> bytes:
    """Encodes an error, without its headers and field errors, which no error of the scheduling has."""
    delay = math.nan if error.retry_after is None else error.retry_after
    return pack(Kind.REFUSED, number, _DELAY.pack(delay) + f"{error.code}\0{error.detail}".encode())


def unpack_error(body: memoryview) -> SwiftletError:
    """Decodes an error.

    Raises:
        ValueError, KeyError, struct.error: the body is invalid.
    """
    (delay,) = _DELAY.unpack_from(body)
    code, _, detail = bytes(body[_DELAY.size :]).decode().partition("\0")
    return _ERRORS[code](code, detail, retry_after=None if math.isnan(delay) else delay)
