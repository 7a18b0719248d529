"""The echo engine with moods, which files beside the artifact set at any time: `broken`, that every call fails; and
`slow`, which holds how many seconds each row takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from swiftlet_serve.models.artifact import Artifact
from swiftlet_serve.service.engines.echo import Echo
from swiftlet_serve.service.types import Batch, Cost, Row


class Moody(Echo):
    cost = Cost(padded=False, call_tokens=0, max_tokens=4096, max_rows=8)  # so that no call is overdue when it is slow

    def __init__(self, width: int, directory: Path) -> None:
        super().__init__(width)
        self._directory = directory

    def run(self, batch: Batch) -> Sequence[Row]:
        if (self._directory / "broken").exists():
            raise RuntimeError("as asked")
        slow = self._directory / "slow"
        if slow.exists():
            time.sleep(len(batch) * float(slow.read_text()))
        return super().run(batch)


def create(artifact: Artifact, threads: int) -> Moody:
    return Moody(artifact.manifest.width, artifact.path.parent)
