"""Replays an artifact's golden answers on an engine: warm-up, smoke test and parity check in one.

`golden.npz` holds B encodings laid end to end as in a `Batch` (`input_ids`, `token_type_ids`, `offsets`, `focus`,
`focus_offsets`) and what the fp32 network answers: `rows` (N, C) float32, of the head's O numbers those in `columns`
(C,).
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.artifact import GOLDEN, Artifact, ArtifactError
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.topk import NOTHING, Ranked, Ranking, rank
from swiftlet_serve.service.types import Batch, Engine, Row, TimedCall

RANKED: Final = 3  # numbers that are asked for, to see whether the engine finds the largest
ARRAYS: Final = {"input_ids", "token_type_ids", "offsets", "focus", "focus_offsets", "rows", "columns"}


def replay(artifact: Artifact, engine: Engine) -> float:
    """The largest difference between the engine's answers and the golden ones, each encoding run alone.

    Raises:
        ArtifactError: the difference exceeds the manifest's tolerance, or the file holds no golden answers.
    """
    arrays = _load(artifact)
    rows = arrays.pop("rows")
    try:
        worst = _worst(engine, artifact.manifest.width, rows, arrays.pop("columns"), Batch.without_top_k(**arrays))
    except Exception as error:  # arrays of any content and an engine of any kind meet here
        raise ArtifactError(f"{artifact.path.name}: {GOLDEN} cannot be replayed: {error}") from error
    tolerance = artifact.manifest.tolerance + engine.extra_tolerance * float(np.abs(rows).max(initial=0.0))
    if worst > tolerance:
        raise ArtifactError(
            f"{artifact.path.name}: the engine's answers differ from the golden ones by {worst:.3g}, "
            f"and {tolerance:.3g} is tolerated."
        )
    return worst


def encodings(artifact: Artifact) -> list[Encoding]:
    """What the golden answers answer.

    Raises:
        ArtifactError: the file holds no golden answers.
    """
    arrays = _load(artifact)
    del arrays["rows"], arrays["columns"]
    return Batch.without_top_k(**arrays).encodings()


def rehearse(artifact: Artifact, engine: Engine) -> list[TimedCall]:
    """Runs the golden encodings once more, now that the engine is warm: what its calls take.

    Raises:
        ArtifactError: the file holds no golden answers.
    """
    timed = []
    for encoding in encodings(artifact):
        started = time.perf_counter()
        engine.run(Batch.of([encoding]))
        timed.append(TimedCall(len(encoding.input_ids), time.perf_counter() - started))
    return timed


def _worst(engine: Engine, width: int, rows: NDArray[np.float32], columns: NDArray[np.int64], batch: Batch) -> float:
    worst = 0.0
    for encoding, golden in zip(batch.encodings(), batch.split_rows(rows), strict=True):
        (row,) = engine.run(Batch.of([encoding]))
        if row.shape != (len(encoding.focus), width):
            raise ValueError(f"rows of shape {row.shape} instead of {len(encoding.focus), width}")
        _check_ranking(engine, encoding, row)
        difference = float(np.abs(row[:, columns] - golden).max(initial=0.0))
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def _check_ranking(engine: Engine, encoding: Encoding, row: Row) -> None:
    """Raises ValueError where the engine does not rank the numbers of this row as they are."""
    ranked = engine.run(Batch.of([Ranked(**vars(encoding), top_k=RANKED, candidates=NOTHING)]))[0]
    found, expected = Ranking.of(ranked), Ranking.of(rank(row, RANKED, NOTHING))
    for ours, theirs in zip(found[:2], expected[:2], strict=True):  # of equal numbers, any column may come first
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise ValueError("it ranks its numbers otherwise than they are")


def _load(artifact: Artifact) -> dict[str, NDArray[Any]]:
    path, name = artifact.file(GOLDEN), artifact.path.name
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # a zip file can be broken in more ways than can be listed
        raise ArtifactError(f"{name}: {GOLDEN} cannot be read: {error}") from None
    if arrays.keys() != ARRAYS:
        raise ArtifactError(f"{name}: {GOLDEN} does not hold {', '.join(sorted(ARRAYS))}.")
    if len(arrays["offsets"]) < 2:
        raise ArtifactError(f"{name}: {GOLDEN} holds no answers.")
    return arrays
