"""A model in an engine, or several that share a trunk: runs batches and checks the rows that the engine returns.

If a batch fails, it is split in halves until each failing sequence runs alone. All other sequences get their rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from swiftlet_models.artifact import Artifact, ArtifactError
from swiftlet_models.folded import FoldingError
from swiftlet_serve import engines, plugins
from swiftlet_serve.engines._shared_trunk import Apart, OneHead
from swiftlet_serve.errors import Internal, log_exception
from swiftlet_serve.machine.sealed_files import SealedFiles
from swiftlet_serve.types import Batch, BatchResult, Engine, Outcome, Row, TimedCall, helped_s
from swiftlet_serve.types.codec import ERROR_DETAILS
from swiftlet_serve.types.topk import is_of
from swiftlet_serve.workers.golden import NotReproducedError, replay

log = logging.getLogger(__name__)

MEASURED: Final = "onnx_cpu"  # the engine that the tolerances of artifacts are measured with
MAX_TITLE: Final = 500  # characters
MAX_KERNEL_FAULTS: Final = 1 << 53  # the largest number that a metric holds exactly


class EngineModel(NamedTuple):
    """A model loaded into an engine, or the heads of several models that share a trunk."""

    engine: Engine
    widths: Sequence[int]  # outputs of each head
    timed_calls: Sequence[TimedCall] = ()  # calls that were timed after loading


def host_model(
    artifacts: Sequence[Artifact], engine_name: str, cores: int = 1, files: SealedFiles | None = None
) -> tuple[EngineModel, float | None]:
    """Loads an artifact into an engine and replays its golden answers.

    Args:
        artifacts: the artifact, or several that share a trunk (`swiftlet_models/trunks.py`), in the order of the heads.
            An artifact with an encoder of labels has that as a second head.
        engine_name: the name of the engine.
        cores: that all calls of the process may use together, if the engine's calls can share them.
        files: for the weights, if the engine's processes can share them.

    Returns:
        The hosted model, and the largest |output - golden|. The latter is None if the engine runs no network.

    Raises:
        ArtifactError: the engine cannot run the artifact, or its answers differ from the golden answers.
        SetupError: the engine does not exist, or one of its dependencies is not installed.
    """
    # One thread per call and one call per core: two concurrent calls outperform one call with two threads. An engine
    # that shares cores uses those that are idle.
    module = plugins.load(engines, engine_name)
    options: dict[str, Any] = {"threads": cores if getattr(module, "SHARES_CORES", False) else 1}
    if files is not None and getattr(module, "SHARES_WEIGHTS", False):
        options["files"] = files
    if of_labels := artifacts[0].of_labels:  # sequences of the head 1 are labels
        artifacts = [artifacts[0], of_labels]
    widths = [artifact.manifest.width for artifact in artifacts]
    if len(artifacts) == 1:
        engine: Engine = module.create(artifacts[0], **options)
        heads = [engine]
    else:
        engine = _apart(module, artifacts, options) if of_labels else _engine_of_heads(module, artifacts, options)
        heads = [OneHead(engine, head) for head in range(len(artifacts))]
    if not engine.runs_network:
        return EngineModel(engine, widths, []), None
    try:
        replayed = [replay(artifact, head) for artifact, head in zip(artifacts, heads, strict=True)]
    except NotReproducedError as error:
        engine.close()
        step = f" The tolerance was measured with {MEASURED}: choose --engine {MEASURED}."
        raise ArtifactError(f"{error}{'' if engine_name == MEASURED else step}") from error
    except BaseException:
        engine.close()
        raise
    return EngineModel(engine, widths, replayed[0].timed_calls), max(found.deviation for found in replayed)


def _engine_of_heads(module: Any, artifacts: Sequence[Artifact], options: Mapping[str, Any]) -> Engine:
    """Returns an engine with a head for each artifact, on one trunk if the engine supports that."""
    if hasattr(module, "create_heads"):
        try:
            engine: Engine = module.create_heads(artifacts, **options)
        except FoldingError:
            pass
        else:
            return engine
    return _apart(module, artifacts, options)


def _apart(module: Any, artifacts: Sequence[Artifact], options: Mapping[str, Any]) -> Engine:
    return Apart([module.create(artifact, **options) for artifact in artifacts])


def runtime_title(engine: Engine) -> str:
    """Returns the engine's title, or the name of its class if the title is not a line of text. Never raises."""
    try:
        title = engine.title
    except Exception:  # the title is only shown: a fault in it must not stop the service
        title = ""
    valid = isinstance(title, str) and title.isprintable() and 0 < len(title) <= MAX_TITLE
    return title if valid else type(engine).__name__


def kernel_faults(engine: Engine) -> int:
    """Returns the wrong sums found in this process, or 0 if the engine gives no valid number. Never raises."""
    try:
        count = getattr(engine, "kernel_faults", 0)
    except Exception:  # as above
        return 0
    return count if type(count) is int and 0 <= count <= MAX_KERNEL_FAULTS else 0


def run_timed(model: EngineModel, batch: Batch) -> BatchResult:
    """Runs a batch as `run_batch` does and measures its duration."""
    started = time.monotonic()
    outcomes = run_batch(model, batch)
    return BatchResult(outcomes, time.monotonic() - started, helped_s(model.engine))


def run_batch(model: EngineModel, batch: Batch) -> list[Outcome]:
    """Runs a batch on the calling thread. Returns a row or an error for each sequence; never raises."""
    try:
        rows = model.engine.run(batch)
    except Exception as error:
        if len(batch) == 1:
            log_exception(log, "engine failed on one sequence", error)
            return [_error("internal")]
        encodings, half = batch.encodings(), len(batch) // 2
        return [
            outcome for part in (encodings[:half], encodings[half:]) for outcome in run_batch(model, Batch.of(part))
        ]
    try:
        return _check_rows(rows, batch, model.widths)
    except Exception as error:  # an engine may return anything
        log_exception(log, "engine returned a value that is not a list of rows", error)
        return [_error("invalid_engine_output") for _ in range(len(batch))]


def _check_rows(rows: Sequence[Row], batch: Batch, widths: Sequence[int]) -> list[Outcome]:
    """Replaces invalid rows by errors. If the count or a shape is wrong, no row can be assigned and all are invalid."""
    shapes, expected = [np.shape(row) for row in rows], batch.row_shapes(widths)
    if shapes != expected:
        log.error("engine returned rows of shapes %s, expected %s", shapes, expected)
        return [_error("invalid_engine_output") for _ in expected]
    all_finite = np.isfinite(np.concatenate(rows, axis=None)).all()  # one call for all is faster
    valid = [
        (all_finite or np.isfinite(row).all()) and (not top_k or is_of(row, widths[head]))
        for row, top_k, head in zip(rows, batch.top_k.tolist(), batch.heads.tolist(), strict=True)
    ]
    return [row if good else _error("invalid_engine_output") for row, good in zip(rows, valid, strict=True)]


def _error(code: str) -> Internal:
    return Internal(code, ERROR_DETAILS[code])
