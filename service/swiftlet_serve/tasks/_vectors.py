"""The formats of vectors in a response. Those with fewer bits are for stores that hold them.

`binary` and `ubinary` have a bit for each number, which says whether it is positive, as `quantize_embeddings` of
sentence-transformers packs them. `int8` has the multiples of 1/127 nearest to the numbers. This range, from -1 to 1,
is the same for every model and text, so that a product of two vectors is 127 * 127 times that of the floats. It
equals `quantize_embeddings` with the ranges -128.5/127 and 126.5/127. `uint8` is `int8` plus 128.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.types.json_text import DECIMALS

Format = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]

FEW: Final = 1024  # numbers that JSON holds faster as lists than as arrays: two vectors of 384
STEPS: Final = 127  # of int8, from 0 to 1
BITS: Final = 8  # in a byte of `binary`
FORMAT: Final = "/parameters/encoding_format"

Vectors = NDArray[np.float64]  # (N, D)


def refusal(chosen: Format, dimensions: int, *, normalized: bool) -> Unprocessable | None:
    """Returns the error of vectors that a format cannot hold, or None."""
    if chosen.endswith("int8") and not normalized:
        detail = "int8 and uint8 hold vectors of length 1 only. Set normalize to true, or choose another format."
        return invalid_value(FORMAT, "unsupported", detail)
    if chosen.endswith("binary") and dimensions % BITS:
        detail = f"binary and ubinary need a multiple of {BITS} dimensions. Set dimensions, or choose another format."
        return invalid_value(FORMAT, "unsupported", detail)
    return None


def write(vectors: Vectors, chosen: Format) -> list[Any]:
    """Returns each vector as a value for `json_text`: an array, (D,), or a list, or a text for base64."""
    return WRITERS[chosen](vectors)


def read_base64(text: str) -> NDArray[np.float64]:
    """Returns the vector that a text in base64 holds, (D,)."""
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)


def _float(vectors: Vectors) -> list[Any]:
    rounded = vectors.round(DECIMALS)
    return list(rounded) if rounded.size > FEW else rounded.tolist()


def _base64(vectors: Vectors) -> list[Any]:
    return [base64.b64encode(vector).decode() for vector in vectors.astype("<f4")]


def _levels(vectors: Vectors) -> NDArray[np.int64]:
    return np.floor(STEPS * vectors + 0.5).astype(np.int64)


WRITERS: Final[Mapping[Format, Callable[[Vectors], list[Any]]]] = {
    "float": _float,
    "base64": _base64,
    "int8": lambda vectors: _levels(vectors).tolist(),
    "uint8": lambda vectors: (_levels(vectors) + 128).tolist(),
    "binary": lambda vectors: (np.packbits(vectors > 0, axis=1).astype(np.int64) - 128).tolist(),
    "ubinary": lambda vectors: np.packbits(vectors > 0, axis=1).tolist(),
}
