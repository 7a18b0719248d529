"""An engine that does what the first id of an encoding says; any other id is answered as in `fakes.row_of`.

Files beside the artifact say more: `refuse`, that it cannot be loaded; `broken`, that every call fails; `stuck`, that
every call hangs. And what is asked `ONCE` hangs the first time and leaves the file `once`, so that a test knows when.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swiftlet_serve.models.artifact import Artifact, ArtifactError
from swiftlet_serve.service.types import Batch, Cost, Row

RAISE, HANG, SEIZE, EXIT, CRASH, NAN, FEW, ONCE = range(1001, 1009)
FOREVER_S = 1000


class Faulty:
    cost = Cost(padded=False, call_tokens=0, max_tokens=512, max_rows=64)
    runs_network = False
    extra_tolerance = 0.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._does = {
            RAISE: self._fail,
            HANG: lambda: time.sleep(FOREVER_S),
            SEIZE: lambda: ctypes.PyDLL(None).sleep(FOREVER_S),  # and keeps the interpreter's lock
            EXIT: lambda: os._exit(3),
            CRASH: lambda: signal.raise_signal(signal.SIGSEGV),
            ONCE: self._hang_once,
        }

    def run(self, batch: Batch) -> Sequence[Row]:
        asked = [int(batch.input_ids[start]) for start in batch.offsets[:-1]]
        if (self._directory / "broken").exists():
            self._fail()
        if (self._directory / "stuck").exists():
            time.sleep(FOREVER_S)
        for tag in asked:
            self._does.get(tag, lambda: None)()
        rows = zip(asked, np.diff(batch.focus_offsets), strict=True)
        return [self._row(math.nan if tag == NAN else tag, count) for tag, count in rows if tag != FEW]

    def close(self) -> None:
        pass

    @staticmethod
    def _row(tag: float, count: int) -> Row:
        return np.array([[tag, -tag]] * count, np.float32)

    def _fail(self) -> None:
        raise RuntimeError("as asked")

    def _hang_once(self) -> None:
        once = self._directory / "once"
        if not once.exists():
            once.touch()
            time.sleep(FOREVER_S)


def create(artifact: Artifact, threads: int) -> Faulty:
    if (artifact.path.parent / "refuse").exists():
        raise ArtifactError(f"{artifact.path.name}: it is refused.")
    return Faulty(artifact.path.parent)
