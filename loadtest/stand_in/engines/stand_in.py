"""An engine whose cost is known and whose faults are chosen, for load and torture. Its rows are those of `echo`.

    STAND_IN_FIXED_MS    what a call takes before its first token (0)
    STAND_IN_TOKEN_US    what each token adds (0)
    STAND_IN_FAULTS      the share of encodings that a call fails on, by raising or by a NaN (0)

A call sleeps, so that it takes its time without taking a core. Which encodings are faulty is a function of their ids:
a client can tell which of its requests have to fail.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.artifact import Artifact
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.engines.echo import Echo
from swiftlet_serve.service.types import Batch, Row


class StandIn(Echo):
    def __init__(self, width: int, fixed_s: float = 0.0, token_s: float = 0.0, faults: float = 0.0) -> None:
        super().__init__(width)
        self.fixed_s = fixed_s
        self.token_s = token_s
        self.faults = faults

    def run(self, batch: Batch) -> Sequence[Row]:
        if seconds := self.fixed_s + self.token_s * len(batch.input_ids):
            time.sleep(seconds)
        return super().run(batch)

    def numbers(self, encoding: Encoding) -> NDArray[np.float32]:
        kind = fault(encoding, self.faults)
        if kind == "raises":
            raise RuntimeError("a fault that was asked for")
        found = super().numbers(encoding)
        return np.full_like(found, np.nan) if kind == "nan" else found


def fault(encoding: Encoding, share: float) -> str | None:
    """What goes wrong with an encoding."""
    number = zlib.crc32(encoding.input_ids.astype("<i8").tobytes(), 1) / 2**32
    if number >= share:
        return None
    return "raises" if number < share / 2 else "nan"


def create(artifact: Artifact, threads: int) -> StandIn:  # noqa: ARG001  # every engine is made like this
    fixed_ms, token_us, faults = (
        float(os.environ.get(f"STAND_IN_{name}", "0")) for name in ("FIXED_MS", "TOKEN_US", "FAULTS")
    )
    if faults:
        logging.getLogger(
            "swiftlet_serve.service.workers.hosted_model"
        ).disabled = True  # it would tell of every one that was asked for
    return StandIn(artifact.manifest.width, fixed_ms / 1e3, token_us / 1e6, faults)
