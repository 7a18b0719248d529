"""An engine without a network. A row is a function of its sequence's ids alone.

Tests use it to check that each response belongs to its request. Benchmarks use it to measure everything but the
network.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import Artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import Batch, Cost, Row


class Echo:
    title: ClassVar[str] = "echo"
    cost: ClassVar[Cost] = Cost(padded=False, call_tokens=0, max_tokens=4096, max_rows=64)
    runs_network: ClassVar[bool] = False
    extra_tolerance: ClassVar[float] = 0.0

    def __init__(self, width: int) -> None:
        self.width = width

    def run(self, batch: Batch) -> Sequence[Row]:
        return batch.split_rows(np.concatenate([self.numbers(encoding) for encoding in batch.encodings()]))

    def numbers(self, encoding: Encoding) -> NDArray[np.float32]:
        """Returns the outputs of one sequence, (F, width)."""
        return echo(encoding, self.width)

    def close(self) -> None:
        pass


def echo(encoding: Encoding, width: int) -> Row:
    """Returns outputs (F, width) from -4 to 4 that depend on the ids, the position and the column."""
    seed = zlib.crc32(encoding.input_ids.astype("<i8").tobytes()) % 10_007
    phase = seed + 1.7 * encoding.focus[:, None] + 0.61 * np.arange(width)  # (F, O)
    return np.asarray(4 * np.sin(phase), np.float32)


def create(artifact: Artifact, threads: int) -> Echo:  # noqa: ARG001  # the signature of every engine
    return Echo(artifact.manifest.width)
