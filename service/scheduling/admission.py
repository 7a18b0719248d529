"""Admission control: decides which requests the queues take, by their deadlines and the predicted waiting time.

A request is refused immediately and as a whole, before it costs work. Admission has three steps:

    reserve   the request's head was read: refuse it if no request could meet its deadline
    commit    the request was encoded: decide by its true size
    release   the request has ended, whatever its result
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from swiftlet_serve.service.errors import Unavailable, deadline_exceeded, draining
from swiftlet_serve.service.scheduling.load import Load, wait_s
from swiftlet_serve.service.types import Priority

MAX_WAIT_SHARE: Final[dict[Priority, float]] = {"interactive": 0.75, "bulk": 0.375}
"""Largest share of the time to its deadline that a request may spend in the queue."""

MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0


def admissible(wait_s: float, own_s: float, left_s: float, priority: Priority) -> bool:
    """Returns whether a request may be queued.

    Without a wait, every request with time left is admitted: an idle core costs other requests nothing, and its call
    corrects a wrong estimate. Otherwise the limit on the wait applies to short and long requests alike. A limit on the
    sum alone would let short requests fill every gap of a full queue, so that no long request is ever admitted.

    Args:
        wait_s: predicted wait in the queue.
        own_s: predicted duration of the request itself.
        left_s: time to its deadline.
        priority: its priority.
    """
    if wait_s <= 0:
        return left_s > 0
    return wait_s <= left_s * MAX_WAIT_SHARE[priority] and wait_s + own_s <= left_s


def retry_after_s(wait_s: float, random: float) -> float:
    """Returns the seconds after which a refused client should retry: once the queue is drained, plus up to half.

    `random`, from 0 to 1, spreads the clients out, so that they do not all return at the same time.
    """
    return min(MAX_RETRY_S, max(MIN_RETRY_S, wait_s * (1 + random / 2)))


class AdmissionController:
    """Decides which requests are admitted, and knows those that are still being read."""

    def __init__(self, load: Callable[[], Load], max_queued_tokens: int) -> None:
        """`load` returns the current load of the dispatcher. `max_queued_tokens` limits its queues."""
        self.max_queued_tokens = max_queued_tokens
        self.closed = False  # whether every request is refused
        self._load = load
        self._reserved: set[object] = set()
        self.mean_request_s = 0.0  # moving average of one core's seconds for a request
        self._jitter = random.Random()  # noqa: S311  # spreads retries out, and is not a secret

    def reserve(self, request: object, left_s: float, priority: Priority, *, complete: bool) -> None:
        """Decides on a request whose body was not read yet, and reserves its place in the queue.

        Only a `complete` request, whose body has arrived, gets a reservation. Reservations count as queued work:
        otherwise the server would parse and encode far more requests than it can admit. A client that has not sent its
        body yet may never send it, and must not keep others out. A second reservation of a request has no effect.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Unavailable: no request can meet this deadline, or the controller is closed.
        """
        if request in self._reserved:
            return
        load = self._open_load()
        wait = len(self._reserved) * self.mean_request_s / load.cores + wait_s(load, priority)
        self._check(load, wait, 0.0, left_s, priority)
        if complete:
            self._reserved.add(request)

    def commit(self, request: object, model: str, lengths: Sequence[int], left_s: float, priority: Priority) -> None:
        """Admits an encoded request and removes its reservation. The caller queues its sequences without delay.

        Args:
            request: the request that may have a reservation.
            model: the name of its model.
            lengths: tokens of each of its sequences. Without sequences, the request needs no place in the queue.
            left_s: time to its deadline.
            priority: its priority.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Unavailable: the request cannot meet its deadline, the queues are full, or the controller is closed.
        """
        if lengths:
            self._decide(model, lengths, left_s, priority)
        self.release(request)

    def least_s(self, model: str | None = None, lengths: Sequence[int] = (1,)) -> float:
        """Predicts the seconds that the engine needs for a request alone.

        Args:
            model: the name of its model; None for the lower bound over all models.
            lengths: tokens of each of its sequences.
        """
        load = self._load()
        queues = load.models.values() if model is None else [load.models[model]]
        return min(
            [max(queue.latency.single_s(max(lengths)), queue.work_s(lengths) / load.cores) for queue in queues],
            default=0.0,
        )

    def release(self, request: object) -> None:
        """Removes the reservation of a request, if it has one."""
        self._reserved.discard(request)

    def close(self) -> None:
        """Refuses every request from now on."""
        self.closed = True

    def _decide(self, model: str, lengths: Sequence[int], left_s: float, priority: Priority) -> None:
        load = self._open_load()
        queue = load.models[model]
        work_s = queue.work_s(lengths)
        own_s = max(queue.mean_call_s, queue.latency.single_s(max(lengths)), work_s)
        self.mean_request_s += (work_s - self.mean_request_s) / 16
        wait = wait_s(load, priority, queue, own_s)
        self._check(load, wait, own_s, left_s, priority)
        if load.queued_tokens + sum(lengths) > self.max_queued_tokens:
            raise self._overloaded(wait)

    def _open_load(self) -> Load:
        if self.closed:
            raise draining()
        return self._load()

    def _check(self, load: Load, wait: float, own_s: float, left_s: float, priority: Priority) -> None:
        if load.policy == "deadline" and not admissible(wait, own_s, left_s, priority):
            raise self._overloaded(wait) if left_s > 0 else deadline_exceeded()

    def _overloaded(self, wait: float) -> Unavailable:
        after = retry_after_s(wait, self._jitter.random())
        detail = "The queue is too long to meet the deadline of this request. Retry after the time in Retry-After."
        return Unavailable("overloaded", detail, retry_after=after)
