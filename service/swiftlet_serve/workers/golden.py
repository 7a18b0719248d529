"""Replays an artifact's golden answers on an engine: warm-up, smoke test, parity check and timing in one step.

`golden.npz` holds B sequences laid end to end as in a `Batch` (`input_ids`, `token_type_ids`, `offsets`, `focus`,
`focus_offsets`) and the outputs of the fp32 network. `rows` (N, C) float32 are the head's outputs in `columns` (C,).
"""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import GOLDEN, MAX_BYTES, Artifact, ArtifactError
from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import Batch, Engine, Row, TimedCall, helped_s
from swiftlet_serve.types.topk import NOTHING, Ranked, Ranking, rank

TOP_K: Final = 3  # outputs requested to check the engine's ranking
MAX_TOKENS: Final = 16384  # of all sequences
_IDS: Final = (np.dtype("<i8"), 1)
ARRAYS: Final[Mapping[str, tuple[np.dtype[Any], int]]] = {
    **dict.fromkeys(("input_ids", "token_type_ids", "offsets", "focus", "focus_offsets", "columns"), _IDS),
    "rows": (np.dtype("<f4"), 2),
}
"""The arrays of the file, with their types and numbers of dimensions."""


class NotReproducedError(ArtifactError):
    """Raised when an engine does not reproduce the golden answers."""


class Replay(NamedTuple):
    """What an engine did with the golden sequences."""

    deviation: float  # the largest |output - golden|
    timed_calls: Sequence[TimedCall]  # one for each sequence, as if on one core


def replay(artifact: Artifact, engine: Engine) -> Replay:
    """Runs each golden sequence alone, timed. The one that the head reads most of runs first, with its outputs ranked.

    That call also warms the engine.

    Raises:
        NotReproducedError: the difference exceeds the manifest's tolerance, or an answer is not finite.
        ArtifactError: the file holds no golden answers, or the engine fails.
    """
    arrays = _load(artifact)
    rows = arrays.pop("rows")
    try:
        columns, width = arrays.pop("columns"), artifact.manifest.width
        replayed = _replay(engine, width, rows, columns, Batch.without_top_k(**arrays))
    except Exception as error:  # neither the arrays' content nor the engine can be trusted here
        kind, reason = NotReproducedError if isinstance(error, _Wrong) else ArtifactError, str(error).removesuffix(".")
        raise kind(f"{artifact.path.name}: {GOLDEN} cannot be replayed: {reason}.") from error
    _check_deviation(artifact, engine, replayed.deviation, rows)
    return replayed


def check_deviation(artifact: Artifact, engine: Engine, deviation: float) -> None:
    """Checks the largest deviation of an engine's answers from the golden answers.

    Raises:
        NotReproducedError: it is above the manifest's tolerance.
        ArtifactError: the file holds no golden answers.
    """
    _check_deviation(artifact, engine, deviation, _load(artifact)["rows"])


def _check_deviation(artifact: Artifact, engine: Engine, deviation: float, rows: NDArray[np.float32]) -> None:
    tolerance = artifact.manifest.tolerance + engine.extra_tolerance * float(np.abs(rows).max(initial=0.0))
    if not deviation <= tolerance:  # also true if either is NaN
        raise NotReproducedError(
            f"{artifact.path.name}: the engine's answers differ from the golden answers by {deviation:.3g}. "
            f"The tolerance is {tolerance:.3g}."
        )


def golden_inputs(artifact: Artifact) -> list[Encoding]:
    """Returns the sequences of the golden answers.

    Raises:
        ArtifactError: the file holds no golden answers.
    """
    arrays = _load(artifact)
    del arrays["rows"], arrays["columns"]
    return Batch.without_top_k(**arrays).encodings()


def _replay(engine: Engine, width: int, rows: NDArray[np.float32], columns: NDArray[np.int64], batch: Batch) -> Replay:
    largest, timed, encodings = 0.0, [], batch.encodings()
    most = max(encodings, key=lambda encoding: (len(encoding.focus), len(encoding.input_ids)))
    (ranked,) = engine.run(Batch.of([Ranked(**vars(most), top_k=TOP_K, candidates=NOTHING)]))
    for encoding, golden in zip(encodings, batch.split_rows(rows), strict=True):
        started = time.perf_counter()
        (row,) = engine.run(Batch.of([encoding]))
        timed.append(TimedCall(len(encoding.input_ids), time.perf_counter() - started + helped_s(engine)))
        if row.shape != (len(encoding.focus), width):
            raise ValueError(f"the engine returned a row of shape {row.shape}, expected {len(encoding.focus), width}")
        if not np.isfinite(row).all():
            raise _Wrong("the engine returned NaN or infinity")
        if encoding is most:
            _check_ranking(ranked, row)
        largest = max(largest, float(np.abs(row[:, columns] - golden).max(initial=0.0)))
    return Replay(largest, timed)


def _check_ranking(ranked: Row, row: Row) -> None:
    """Raises _Wrong if the engine's top-k result differs from the top-k of this row."""
    actual, expected = Ranking.of(ranked), Ranking.of(rank(row, TOP_K, NOTHING))
    for ours, theirs in zip(actual[:2], expected[:2], strict=True):  # equal outputs may come in any order of columns
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
            raise _Wrong("the engine's top-k result does not match its outputs")


class _Wrong(Exception):
    """Raised when an engine's answer is wrong in itself. The message is a sentence without its full stop."""


class _Unfit(Exception):
    """Raised when a file does not hold golden answers. The message is a predicate."""


def _load(artifact: Artifact) -> dict[str, NDArray[Any]]:
    name = artifact.path.name
    try:
        with zipfile.ZipFile(artifact.file(GOLDEN)) as file:
            entries = _entries(file)
            arrays = {key: _read(file, entry, *ARRAYS[key]) for key, entry in entries.items()}
        _check_layout(artifact.manifest.width, **arrays)
    except _Unfit as error:
        raise ArtifactError(f"{name}: {GOLDEN} {error}.") from None
    except Exception as error:  # a damaged zip file can raise many types
        raise ArtifactError(f"{name}: {GOLDEN} cannot be read: {error}") from None
    return arrays


def _entries(file: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Returns the entries by the names of their arrays. Raises _Unfit."""
    entries = {entry.filename.removesuffix(".npy"): entry for entry in file.infolist()}
    if entries.keys() != ARRAYS.keys():
        raise _Unfit(f"must hold exactly the arrays {', '.join(sorted(ARRAYS))}")
    if sum(entry.file_size for entry in entries.values()) > MAX_BYTES[GOLDEN]:
        raise _Unfit(f"holds more than {MAX_BYTES[GOLDEN]} bytes")
    return entries


def _read(file: zipfile.ZipFile, entry: zipfile.ZipInfo, dtype: np.dtype[Any], dimensions: int) -> NDArray[Any]:
    """Returns the array of an entry. Its memory is at most the size of the entry.

    Raises:
        _Unfit: the entry holds another type or shape, or another number of bytes than it says.
    """
    with file.open(entry) as stream:
        content = stream.read(entry.file_size)  # without a size, the stream would expand any number of bytes
    header = BytesIO(content)
    shape, is_fortran, stored = _read_header(header)
    raw = content[header.tell() :]
    if stored != dtype or len(shape) != dimensions:
        raise _Unfit(f"has other numbers or dimensions in {entry.filename}")
    if math.prod(shape) * dtype.itemsize != len(raw) or len(content) != entry.file_size:
        raise _Unfit(f"does not have the bytes of the shape of {entry.filename}")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if is_fortran else "C").copy()


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads the header of an array: its shape, whether it is in Fortran's order, and its type."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file)
    return header


def _check_layout(
    width: int,
    rows: NDArray[np.float32],
    columns: NDArray[np.int64],
    offsets: NDArray[np.int64],
    focus_offsets: NDArray[np.int64],
    input_ids: NDArray[np.int64],
    token_type_ids: NDArray[np.int64],
    focus: NDArray[np.int64],
) -> None:
    """Raises _Unfit if the arrays are not sequences and answers to them.

    The engine checks the numbers of tokens, token types and positions.
    """
    if len(offsets) < 2:
        raise _Unfit("holds no answers")
    if len(input_ids) > MAX_TOKENS:
        raise _Unfit(f"has more than {MAX_TOKENS} tokens")
    for ends, total, least in ((offsets, len(input_ids), 1), (focus_offsets, len(focus), 0)):
        if len(ends) != len(offsets) or (ends[0], ends[-1]) != (0, total) or (ends[1:] < ends[:-1] + least).any():
            raise _Unfit("has offsets that do not divide its sequences")
    if len(token_type_ids) != len(input_ids) or rows.shape != (len(focus), len(columns)):
        raise _Unfit("has arrays of different lengths")
    if ((columns < 0) | (columns >= width)).any():
        raise _Unfit("has columns that the head does not have")
    if not np.isfinite(rows).all():
        raise _Unfit("holds answers that are not finite numbers")
