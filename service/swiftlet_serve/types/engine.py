"""The protocol of engines, and the cost model that an engine declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from swiftlet_serve.types.batch import Batch, Row

EARLIER_WRONG_SUMS: Final = "SWIFTLET_EARLIER_WRONG_SUMS"
"""Environment variable of a worker process whose predecessors found wrong sums: how many. An engine that can find them
must then compute in a way that it trusts."""


@dataclass(frozen=True)
class Cost:
    """The cost of a batch, in tokens, and the limits of a batch."""

    padded: bool  # whether a batch costs rows times the longest length, and not the sum of the lengths
    call_tokens: int  # fixed cost of a call, as a number of tokens
    max_tokens: int  # limit of a batch, as charged
    max_rows: int  # limit of a batch
    padded_attention: bool = False  # whether attention alone costs rows times the longest length
    max_calls: int | None = None  # useful number of concurrent calls; None: one for each core
    shares_cores: bool = False  # whether a call uses idle cores, and gives them back when another call starts
    shares_trunk: bool = False  # whether heads that read the same tokens in one batch cost as much as one


def helped_s(engine: object) -> float:
    """Returns the time that other cores spent on this thread's last call; 0 for an engine that shares no cores."""
    seconds: float = getattr(engine, "helped_s", 0.0)
    return seconds


class TimedCall(NamedTuple):
    """A call with one sequence, and its duration."""

    tokens: int
    seconds: float


class Engine(Protocol):
    """A network in some runtime. It knows no task, and no architecture by name.

    `engines/<name>.py` creates one with `create(artifact: Artifact, threads: int)`, where `threads` is the
    number of threads that one call may use.

    An engine that checks its own sums has the property `kernel_faults: int`: the wrong sums that engines of its kind
    have found in this process since it was loaded. Other engines do not have this property.

    An engine whose calls can share the cores of a process says so with `SHARES_CORES = True` in its module. `threads`
    is then the number of cores that all of its calls may use together: a call uses the idle ones, and gives them back
    when another call arrives. The property `helped_s: float` is the time that other cores spent on the calling thread's
    last call.

    An engine whose processes can share weights says so with `SHARES_WEIGHTS = True` in its module. `create` then takes
    `files: SealedFiles | None` as well.
    """

    @property
    def title(self) -> str:
        """The name of the runtime that the engine chose. An engine may have several and fall back.

        It changes only when the engine finds a wrong sum.
        """
        ...

    @property
    def cost(self) -> Cost: ...

    @property
    def runs_network(self) -> bool:
        """Whether the engine computes the artifact's network. Golden answers are replayed only on such an engine."""
        ...

    @property
    def extra_tolerance(self) -> float:
        """Tolerance for rounding errors on top of the artifact's, relative to the largest golden answer."""
        ...

    def run(self, batch: Batch) -> Sequence[Row]:
        """Runs the batch and returns one row for each sequence, as from `batch.split_rows`.

        Blocks until the batch is done. Several threads may call it concurrently.
        """
        ...

    def close(self) -> None:
        """Releases the engine's resources. No call may follow."""
        ...
