"""An engine without a network. A row is a function of its sequence's ids alone.

Tests use it to check that each response belongs to its request. Benchmarks use it to measure everything but the
network.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from swiftlet_models.artifact import Artifact
from swiftlet_models.encodings import Encoding, Ids
from swiftlet_serve.types import Batch, Cost, Row


class Echo:
    title: ClassVar[str] = "echo"
    cost: ClassVar[Cost] = Cost(padded=False, call_tokens=0, max_tokens=4096, max_rows=64)
    runs_network: ClassVar[bool] = False
    extra_tolerance: ClassVar[float] = 0.0

    def __init__(self, width: int) -> None:
        self.width = width

    def run(self, batch: Batch) -> Sequence[Row]:
        ids, ends = batch.input_ids.astype("<i8", copy=False).tobytes(), (8 * batch.offsets).tolist()
        seeds = [_seed(ids[start:end]) for start, end in pairwise(ends)]
        of_positions = np.repeat(np.array(seeds), np.diff(batch.focus_offsets))
        return batch.split_rows(_outputs(of_positions, batch.focus, self.width))

    def close(self) -> None:
        pass


def echo(encoding: Encoding, width: int) -> Row:
    """Returns outputs (F, width) from -4 to 4 that depend on the ids, the position and the column."""
    return _outputs(np.array(_seed(encoding.input_ids.astype("<i8").tobytes())), encoding.focus, width)


def _seed(ids: bytes) -> int:
    return zlib.crc32(ids) % 10_007


def _outputs(seeds: Ids, focus: Ids, width: int) -> Row:
    """Returns the outputs of N positions, (N, width), given the seed of each one's sequence, (N,), or of all."""
    phase = seeds[..., None] + 1.7 * focus[:, None] + 0.61 * np.arange(width)
    return np.asarray(4 * np.sin(phase), np.float32)


def create(artifact: Artifact, threads: int) -> Echo:  # noqa: ARG001  # the signature of every engine
    return Echo(artifact.manifest.width)
