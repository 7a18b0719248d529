"""Binary messages between a front and the coordinator, in little-endian numbers and without pickle.

A message is a header and a body. The header is the length of the message in bytes (uint32), its `Kind` (uint32) and the
number of the request (uint64), which the front gives. The bodies:

    SUBMIT    model, priority (uint32), deadline (float64), B, bytes of the client's name, 1 for a further part of a
              request (uint32); sequences; the name
    PART      B (uint32); sequences, or rows
    RESULT    B, size of the largest batch (uint32); start and end of the stages queue, batch and infer (6 float64,
              NaN without a row); rows
    REFUSED   seconds for Retry-After (float64, NaN without), code and detail as text with a NUL byte between them
    CHARGE    requests (uint32); the client's name
    others    JSON, or nothing

`types.codec` describes the B sequences and rows. Those of a large request come in several messages: PARTs, and then the
SUBMIT or RESULT with the last ones. Each side packs and unpacks one of them in an iteration of its event loop.
Times are from `time.monotonic()`, which all processes of a Linux machine share.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal, SwiftletError
from swiftlet_serve.telemetry.request_record import RequestRecord, Span, Stage
from swiftlet_serve.types import Deadline, Outcome, Priority, codec


class Kind(enum.IntEnum):
    """The kinds of messages. F: from a front, C: from the coordinator."""

    SUBMIT = 1  # F: runs a request
    CANCEL = 2  # F: the client has gone, or the deadline has passed
    CHARGE = 3  # F: a request that never was submitted, or a batch, counts for the client's rate limit
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
    PART = 18  # both: sequences or rows of a request, before those of its SUBMIT or RESULT


HEADER: Final = struct.Struct("<IIQ")
MAX_BYTES: Final = 1 << 28
MOST: Final = 256
"""Sequences or rows of a message: each takes 3 µs, and a request has up to 2,048."""
MOST_NUMBERS: Final = 1 << 18
"""Token ids or values of a message with more than one sequence or row."""

_SUBMIT: Final = struct.Struct("<IIdIII")
_CHARGE: Final = struct.Struct("<I")
_RESULT: Final = struct.Struct("<II6d")
_PART: Final = struct.Struct("<I")
_DELAY: Final = struct.Struct("<d")
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
    is_further: bool = False  # whether it is a further part of a request, which the rate limit has counted


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
        ValueError: the body is not JSON.
    """
    return from_json(bytes(body))


def pack_charge(number: int, requests: int, client: str) -> bytes:
    """Encodes the count of a client's requests."""
    return pack(Kind.CHARGE, number, _CHARGE.pack(requests) + client.encode())


def unpack_charge(body: memoryview) -> tuple[int, str]:
    """Decodes the count of requests, and the client.

    Raises:
        ValueError, struct.error: the body is invalid.
    """
    return _CHARGE.unpack_from(body)[0], bytes(body[_CHARGE.size :]).decode()


def pack_submission(number: int, submission: Submission, start: int = 0) -> tuple[bytes, int]:
    """Encodes the sequences of a request from `start` on, as many as a message holds. Returns the message and its end.

    It is a SUBMIT if it has the last one, and a PART otherwise.
    """
    model, encodings, deadline, priority, client, is_further = submission
    end = _end([len(encoding.input_ids) for encoding in encodings[start : start + MOST]], start)
    sequences = codec.pack_sequences(encodings[start:end])
    if end < len(encodings):
        return pack(Kind.PART, number, _PART.pack(end - start) + sequences), end
    name = client.encode()
    head = _SUBMIT.pack(model, _PRIORITIES.index(priority), deadline, end - start, len(name), is_further)
    return pack(Kind.SUBMIT, number, b"".join([head, sequences, name])), end


def _end(sizes: Sequence[int], start: int) -> int:
    """Returns the end of the sequences or rows of a message that begins at `start`, given their sizes in numbers."""
    return start + max(1, sum([total <= MOST_NUMBERS for total in accumulate(sizes)]))


def unpack_sequences(body: memoryview) -> list[Encoding]:
    """Decodes the sequences of a PART.

    Raises:
        ValueError, struct.error: the body is invalid.
    """
    return codec.unpack_sequences(body, _PART.unpack_from(body)[0], _PART.size)


def unpack_rows(body: memoryview) -> list[Outcome]:
    """Decodes the outcomes of a PART. Rows are copies, not views.

    Raises:
        ValueError, IndexError, struct.error: the body is invalid.
    """
    return codec.unpack_rows(body, _PART.unpack_from(body)[0], _PART.size)


def unpack_submission(body: memoryview) -> Submission:
    """Decodes a request with its last sequences. The arrays of its encodings are views of the body.

    Raises:
        ValueError, struct.error: the body is invalid.
    """
    model, priority, deadline, size, name_bytes, is_further = _SUBMIT.unpack_from(body)
    if priority >= len(_PRIORITIES) or not math.isfinite(deadline) or not size:
        raise ValueError("The head of the request is invalid.")
    end = len(body) - name_bytes
    encodings = codec.unpack_sequences(body[:end], size, _SUBMIT.size)
    client = bytes(body[end:]).decode()
    return Submission(model, encodings, deadline, _PRIORITIES[priority], client, bool(is_further))


def pack_result(number: int, outcomes: Sequence[Outcome], record: RequestRecord, start: int = 0) -> tuple[bytes, int]:
    """Encodes the outcomes of a request's sequences from `start` on, with the stages of its record after the last one.

    Returns the message and its end, as `pack_submission`.
    """
    values = [0 if isinstance(outcome, Internal) else outcome.size for outcome in outcomes[start : start + MOST]]
    end = _end(values, start)
    rows = codec.pack_rows(outcomes[start:end])
    if end < len(outcomes):
        return pack(Kind.PART, number, _PART.pack(end - start) + rows), end
    spans = [time for stage in _STAGES for time in record.stages[stage]] if record.stages else _NO_SPANS
    return pack(Kind.RESULT, number, _RESULT.pack(end - start, record.batch_size, *spans) + rows), end


def unpack_result(body: memoryview) -> Result:
    """Decodes the last outcomes of a request's sequences. Rows are copies, not views.

    Raises:
        ValueError, IndexError, struct.error: the body is invalid.
    """
    size, batch_size, *times = _RESULT.unpack_from(body)
    stages: dict[Stage, Span] = {}
    if not math.isnan(times[0]):
        stages = {stage: Span(times[2 * i], times[2 * i + 1]) for i, stage in enumerate(_STAGES)}
    return Result(codec.unpack_rows(body, size, _RESULT.size), stages, batch_size)


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
