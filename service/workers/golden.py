"""Replays an artifact's golden answers on an engine: warm-up, smoke test and parity check in one step.

`golden.npz` holds B sequences laid end to end as in a `Batch` (`input_ids`, `token_type_ids`, `offsets`, `focus`,
`focus_offsets`) and the outputs of the fp32 network. `rows` (N, C) float32 are the head's outputs in `columns` (C,).
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.artifact import GOLDEN, Artifact, ArtifactError
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.topk import NOTHING, Ranked, Ranking, rank
from swiftlet_serve.service.types import Batch, Engine, Row, TimedCall

TOP_K: Final = 3  # outputs requested to check the engine's ranking
ARRAYS: Final = {"input_ids", "token_type_ids", "offsets", "focus", "focus_offsets", "rows", "columns"}


def replay(artifact: Artifact, engine: Engine) -> float:
    """Returns the largest |output - golden|. Each sequence runs alone.

    Raises:
        ArtifactError: the difference exceeds the manifest's tolerance, an answer is not finite, or the file holds no
            golden answers.
    """
    arrays = _load(artifact)
    rows = arrays.pop("rows")
    try:
        columns, width = arrays.pop("columns"), artifact.manifest.width
        deviation = _deviation(engine, width, rows, columns, Batch.without_top_k(**arrays))
    except Exception as error:  # neither the arrays' content nor the engine can be trusted here
        raise ArtifactError(f"{artifact.path.name}: {GOLDEN} cannot be replayed: {error}") from error
    tolerance = artifact.manifest.tolerance + engine.extra_tolerance * float(np.abs(rows).max(initial=0.0))
    if not deviation <= tolerance:  # also true if either is NaN
        raise ArtifactError(
            f"{artifact.path.name}: the engine's answers differ from the golden answers by {deviation:.3g}. "
            f"The tolerance is {tolerance:.3g}."
        )
    return deviation


def golden_inputs(artifact: Artifact) -> list[Encoding]:
    """Returns the sequences of the golden answers.

    Raises:
        ArtifactError: the file holds no golden answers.
    """
    arrays = _load(artifact)
    del arrays["rows"], arrays["columns"]
    return Batch.without_top_k(**arrays).encodings()


def time_calls(artifact: Artifact, engine: Engine) -> list[TimedCall]:
    """Runs the golden sequences on a warm engine and measures the duration of each call.

    Raises:
        ArtifactError: the file holds no golden answers.
    """
    timed = []
    for encoding in golden_inputs(artifact):
        started = time.perf_counter()
        engine.run(Batch.of([encoding]))
        timed.append(TimedCall(len(encoding.input_ids), time.perf_counter() - started))
    return timed


def _deviation(
    engine: Engine, width: int, rows: NDArray[np.float32], columns: NDArray[np.int64], batch: Batch
) -> float:
    largest = 0.0
    for encoding, golden in zip(batch.encodings(), batch.split_rows(rows), strict=True):
        (row,) = engine.run(Batch.of([encoding]))
        if row.shape != (len(encoding.focus), width):
            raise ValueError(f"the engine returned a row of shape {row.shape}, expected {len(encoding.focus), width}")
        if not np.isfinite(row).all():
            raise ValueError("the engine returned NaN or infinity")
        _check_ranking(engine, encoding, row)
        largest = max(largest, float(np.abs(row[:, columns] - golden).max(initial=0.0)))
    return largest


def _check_ranking(engine: Engine, encoding: Encoding, row: Row) -> None:
    """Raises ValueError if the engine's top-k result differs from the top-k of this row."""
    ranked = engine.run(Batch.of([Ranked(**vars(encoding), top_k=TOP_K, candidates=NOTHING)]))[0]
    found, expected = Ranking.of(ranked), Ranking.of(rank(row, TOP_K, NOTHING))
    for ours, theirs in zip(found[:2], expected[:2], strict=True):  # equal outputs may come in any order of columns
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
            raise ValueError("the engine's top-k result does not match its outputs")


def _load(artifact: Artifact) -> dict[str, NDArray[Any]]:
    path, name = artifact.file(GOLDEN), artifact.path.name
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # a damaged zip file can raise many types
        raise ArtifactError(f"{name}: {GOLDEN} cannot be read: {error}") from None
    if arrays.keys() != ARRAYS:
        raise ArtifactError(f"{name}: {GOLDEN} must hold exactly the arrays {', '.join(sorted(ARRAYS))}.")
    if len(arrays["offsets"]) < 2:
        raise ArtifactError(f"{name}: {GOLDEN} holds no answers.")
    if arrays["rows"].dtype.kind != "f" or not np.isfinite(arrays["rows"]).all():
        raise ArtifactError(f"{name}: {GOLDEN} holds answers that are not finite numbers.")
    return arrays
