"""The protocol of executors, which run batches on engines."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal
from swiftlet_serve.types.batch import Row
from swiftlet_serve.types.engine import Cost, TimedCall

Outcome = Row | Internal
"""The result of one sequence: its row, or the error of the engine."""


class BatchResult(NamedTuple):
    """The results of one call."""

    outcomes: list[Outcome]  # one for each sequence
    engine_s: float  # duration of the engine's work, without the transfer to and from its process
    helped_s: float = 0.0  # time of other cores, which were idle and took a part of the work


class WorkerLost(Exception):
    """Raised when the worker process dies or is killed during a call.

    `suspect` tells whether this call may be the cause: it timed out, or the process died by itself.
    """

    def __init__(self, *, suspect: bool) -> None:
        super().__init__(f"the worker process was lost, {'possibly' if suspect else 'not'} because of this call")
        self.suspect = suspect


class Executor(Protocol):
    """Runs batches on engines, with at most `size` calls at the same time."""

    size: int

    @property
    def restarts(self) -> int:
        """Number of engines that were lost and replaced."""
        ...

    @property
    def kernel_faults(self) -> int:
        """Number of wrong sums that engines found in their own work. It never falls."""
        ...

    @property
    def workers(self) -> Mapping[str, int]:
        """The ids of the worker processes by their roles, `serving` and `spare`. Empty without processes.

        With several devices, the number of the device follows the role.
        """
        ...

    @property
    def ready(self) -> bool:
        """Whether the executor accepts calls now."""
        ...

    def runtime(self, model: str) -> str:
        """Returns the title of the engine that serves a model now. The engine must be loaded."""
        ...

    def cost(self, model: str) -> Cost:
        """Returns the cost model of a model's engine. The engine must be loaded."""
        ...

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        """Returns the calls that were timed while the engine was loaded."""
        ...

    async def open(self) -> None:
        """Starts supervising the engines, on the event loop that calls `run`."""
        ...

    async def add_model(self, model: str, path: Path, /) -> None:
        """Loads another model while calls run, and replays its golden answers.

        Args:
            model: the name of the model in calls.
            path: the directory of its artifact. It must stay as long as the model does.

        Raises:
            ArtifactError, SetupError: the model cannot be served.
            Unavailable: no engine is ready or starting.
        """
        ...

    async def remove_model(self, model: str) -> None:
        """Releases a model. No call to it may run or follow."""
        ...

    def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float, /) -> Awaitable[BatchResult]:
        """Runs a batch. The call starts immediately where possible: one iteration of the event loop can be long.

        Raises:
            WorkerLost: the call took longer than `timeout_s`, or its worker process was lost.
            Unavailable: no engine is ready or starting.
        """
        ...

    async def close(self, grace_s: float) -> bool:
        """Releases the engines and returns whether no call was still running. No call may follow."""
        ...
