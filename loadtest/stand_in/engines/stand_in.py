"""Engine with a known cost and chosen faults, for load and torture tests. It returns the rows of `echo`.

    STAND_IN_FIXED_MS    fixed duration of a call, in ms (default 0)
    STAND_IN_TOKEN_US    additional duration per token, in µs (default 0)
    STAND_IN_FAULTS      fraction of the sequences that fail, with an exception or a NaN (default 0)

A call sleeps, so it uses no CPU. The ids of a sequence decide whether it fails, so a client can predict which of its
requests fail.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Sequence

import numpy as np

from swiftlet_models.artifact import Artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.types import Batch, Row


class StandIn(Echo):
    def __init__(self, width: int, fixed_s: float = 0.0, token_s: float = 0.0, faults: float = 0.0) -> None:
        super().__init__(width)
        self.fixed_s = fixed_s
        self.token_s = token_s
        self.faults = faults

    def run(self, batch: Batch) -> Sequence[Row]:
        if seconds := self.fixed_s + self.token_s * len(batch.input_ids):
            time.sleep(seconds)
        rows = super().run(batch)
        if not self.faults:
            return rows
        kinds = [fault(encoding, self.faults) for encoding in batch.encodings()]
        if "raises" in kinds:
            raise RuntimeError("injected fault")
        return [np.full_like(row, np.nan) if kind == "nan" else row for row, kind in zip(rows, kinds, strict=True)]


def fault(encoding: Encoding, fraction: float) -> str | None:
    """Returns the fault of a sequence: "raises", "nan" or None."""
    number = zlib.crc32(encoding.input_ids.astype("<i8").tobytes(), 1) / 2**32
    if number >= fraction:
        return None
    return "raises" if number < fraction / 2 else "nan"


def create(artifact: Artifact, threads: int) -> StandIn:  # noqa: ARG001  # all engines have this signature
    values = [float(os.environ.get(f"STAND_IN_{name}", "0")) for name in ("FIXED_MS", "TOKEN_US", "FAULTS")]
    fixed_ms, token_us, faults = values
    if faults:
        logger = logging.getLogger("swiftlet_serve.workers.hosted_model")
        logger.disabled = True  # it would log every injected fault
    return StandIn(artifact.manifest.width, fixed_ms / 1e3, token_us / 1e6, faults)
