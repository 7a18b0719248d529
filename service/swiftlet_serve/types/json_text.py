"""Answers as JSON. Their vectors are arrays, which are written without a Python number for each of theirs.

A number is written with 8 decimals, in 12 bytes: a comma, a space or a minus, and the digits. 64 vectors of 384 numbers
take 0.4 ms, and 1.6 ms as lists of numbers (Sapphire Rapids). An array whose numbers need more digits is written as a
list.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

DECIMALS: Final = 8
BYTES: Final = 12  # of a number
BLOCK: Final = 8192  # numbers that are written at a time: their arrays stay in the cache
LARGEST: Final = 10**9  # of a number times 10 to the power of `DECIMALS`: one digit is before the point
GROUP: Final = 10_000  # four digits, which are looked up together

_PLACE: Final = secrets.token_hex(16)  # stands for an array. No client can know this text, and send it
_QUOTED: Final = b'"%b"' % _PLACE.encode()
_STARTS: Final = np.frombuffer(
    b"".join([b",%c%d." % (sign, digit) for sign in b" -" for digit in range(10)]), np.uint32
)
_DIGITS: Final = np.frombuffer(b"".join([b"%04d" % number for number in range(GROUP)]), np.uint32)


def write(value: object, fallback: Callable[[Any], Any] | None = None, **options: Any) -> bytes:
    """Returns a value as JSON. An array of numbers becomes a list.

    Args:
        value: a value of JSON, in which lists of numbers may be arrays, (D,).
        fallback: returns a value of JSON for a value of another type. None: such a value is an error.
        options: of pydantic's `to_json`.

    Raises:
        PydanticSerializationError: the value is none of JSON.
    """
    arrays: list[NDArray[Any]] = []  # in the order of the text

    def replace(other: Any) -> Any:
        if isinstance(other, np.ndarray):
            arrays.append(other)
            return _PLACE
        if fallback is None:
            raise TypeError(f"{type(other).__name__} is no type of JSON")
        return fallback(other)

    text = to_json(value, fallback=replace, **options)
    if not arrays:
        return text
    first, *others = text.split(_QUOTED)
    parts: list[bytes | memoryview] = [first]
    decimals, end = _write_decimals(arrays), 0
    for array, other in zip(arrays, others, strict=True):
        if decimals is None:
            parts += to_json(array.tolist(), **options), other
        else:
            start, end = end, end + BYTES * len(array)
            parts += b"[", decimals[start + 1 : end], b"]", other
    return b"".join(parts)


def least_bytes(item: object, columns: Sequence[NDArray[np.int64]]) -> int:
    """Returns a lower bound of the size of a list of objects.

    Args:
        item: the shortest object, whose whole numbers have one digit each.
        columns: the whole numbers of all n objects, (n,) for each field. They are at least 0.
    """
    numbers = np.concatenate(columns)
    powers = range(1, len(str(numbers.max(initial=0))))
    digits = sum([int(np.count_nonzero(numbers >= 10**power)) for power in powers])
    return len(columns[0]) * (len(to_json(item)) + len(",")) + digits


def _write_decimals(arrays: Sequence[NDArray[Any]]) -> memoryview | None:
    """Returns the numbers of arrays with 8 decimals, each with a comma before it.

    None if one of them is an integer or needs other digits.
    """
    if any(array.dtype != np.float64 for array in arrays):
        return None
    numbers = np.concatenate(arrays)
    words = np.empty((len(numbers), 3), np.uint32)
    for start in range(0, len(numbers), BLOCK):
        part, own = numbers[start : start + BLOCK], words[start : start + BLOCK]
        scaled = np.rint(part * 10**DECIMALS)
        largest = np.abs(scaled)
        # A quotient is the double nearest to the decimal number, which is what a parser makes of it.
        if not (largest.max() < LARGEST and (scaled / 10**DECIMALS == part).all()):
            return None
        upper, lower = _split(largest.astype(np.int64))
        whole, middle = _split(upper)
        own[:, 0] = _STARTS[whole + 10 * np.signbit(part)]
        own[:, 1] = _DIGITS[middle]
        own[:, 2] = _DIGITS[lower]
    return words.data.cast("B")


def _split(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the upper digits, and the lowest four. `divmod` takes several times as long."""
    upper = numbers // GROUP
    return upper, numbers - GROUP * upper
