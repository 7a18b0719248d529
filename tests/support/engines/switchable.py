"""The echo engine with faults that files beside the artifact switch on and off at any time.

`broken`: every call fails. `slow`: every row takes as many seconds as the file says. `wrong`: the next call finds a
wrong sum.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from swiftlet_models.artifact import Artifact
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.types import Batch, Cost, Row


class Switchable(Echo):
    # Small batches keep a slow call below the limit after which the supervisor kills the process.
    cost = Cost(padded=False, call_tokens=0, max_tokens=4096, max_rows=8)

    def __init__(self, width: int, directory: Path) -> None:
        super().__init__(width)
        self._directory = directory
        self.kernel_faults = 0

    def run(self, batch: Batch) -> Sequence[Row]:
        if (self._directory / "broken").exists():
            raise RuntimeError("the file `broken` exists")
        if (self._directory / "wrong").exists():
            self.kernel_faults = 1
        slow = self._directory / "slow"
        if slow.exists():
            time.sleep(len(batch) * float(slow.read_text()))
        return super().run(batch)


def create(artifact: Artifact, threads: int) -> Switchable:
    return Switchable(artifact.manifest.width, artifact.path.parent)
