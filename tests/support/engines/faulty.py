"""Engine whose faults are selected by the first id of a sequence. Other ids are answered as by `fakes.row_of`.

Files beside the artifact switch further faults on: `refuse` (loading fails), `die` (loading ends the process),
`broken` (every call fails) and `stuck` (every call hangs). A sequence with the id `ONCE` hangs the first time and
creates the file `once`, so that a test can wait for the hang.

The id `WRONG`, and the file `wrong` while the engine is loaded, make it find one wrong sum, after which it avoids the
cause. It also avoids it if an earlier process has found one. The file `nonsense` makes its count invalid.
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

from swiftlet_models.artifact import Artifact, ArtifactError
from swiftlet_serve.types import EARLIER_WRONG_SUMS, Batch, Cost, Row

RAISE, HANG, SEIZE, EXIT, CRASH, NAN, FEW, ONCE, WRONG = range(1001, 1010)
FOREVER_S = 1000


class Faulty:
    cost = Cost(padded=False, call_tokens=0, max_tokens=512, max_rows=64)
    runs_network = False
    extra_tolerance = 0.0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._found = 0
        self._told = EARLIER_WRONG_SUMS in os.environ
        if (directory / "wrong").exists():
            self._find_wrong_sum()
        self._faults = {
            RAISE: self._fail,
            HANG: lambda: time.sleep(FOREVER_S),
            SEIZE: lambda: ctypes.PyDLL(None).sleep(FOREVER_S),  # hangs while holding the GIL
            EXIT: lambda: os._exit(3),
            CRASH: lambda: signal.raise_signal(signal.SIGSEGV),
            ONCE: self._hang_once,
            WRONG: self._find_wrong_sum,
        }

    @property
    def title(self) -> str:
        return f"faulty{' (told)' if self._told else ' (wrong)' if self._found else ''}"

    @property
    def kernel_faults(self) -> int:
        if (self._directory / "nonsense").exists():
            raise RuntimeError("the file `nonsense` exists")
        return self._found

    def run(self, batch: Batch) -> Sequence[Row]:
        tags = [int(batch.input_ids[start]) for start in batch.offsets[:-1]]
        if (self._directory / "broken").exists():
            self._fail()
        if (self._directory / "stuck").exists():
            time.sleep(FOREVER_S)
        for tag in tags:
            self._faults.get(tag, lambda: None)()
        rows = zip(tags, np.diff(batch.focus_offsets), strict=True)
        return [self._row(math.nan if tag == NAN else tag, count) for tag, count in rows if tag != FEW]

    def close(self) -> None:
        pass

    @staticmethod
    def _row(tag: float, count: int) -> Row:
        return np.array([[tag, -tag]] * count, np.float32)

    def _fail(self) -> None:
        raise RuntimeError("the sequence or the file `broken` asks for a failure")

    def _find_wrong_sum(self) -> None:
        self._found = 0 if self._told else 1

    def _hang_once(self) -> None:
        once = self._directory / "once"
        if not once.exists():
            once.touch()
            time.sleep(FOREVER_S)


def create(artifact: Artifact, threads: int) -> Faulty:
    if (artifact.path.parent / "refuse").exists():
        raise ArtifactError(f"{artifact.path.name}: the file `refuse` exists.")
    if (artifact.path.parent / "die").exists():
        os._exit(3)
    return Faulty(artifact.path.parent)
