"""Admission control: decides which requests the queues take, by their deadlines and the predicted waiting time.

A request is refused immediately and as a whole, before it costs work. Admission has three steps:

    reserve   the request's head was read: refuse it if no request could meet its deadline
    commit    the request was encoded: decide by its true size
    release   the request has ended, with any result

Clients have equal shares of the engine, so the wait of a request depends on its client: the sequences of other clients
count up to the share that these clients get meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from swiftlet_serve.errors import Unavailable, deadline_exceeded, draining
from swiftlet_serve.scheduling.latency_model import work
from swiftlet_serve.scheduling.load import Load, wait_s
from swiftlet_serve.scheduling.queue import LONG_S
from swiftlet_serve.scheduling.rate_limit import MAX_CLIENTS
from swiftlet_serve.types import Priority

MAX_WAIT_SHARE: Final[dict[Priority, float]] = {"interactive": 0.75, "bulk": 0.375}
"""Largest share of the time to its deadline that a request may spend in the queue."""

EXTRA_SHARE: Final = 1 / 8
"""Room beyond the limit on queued tokens, for clients that have few tokens in the queues."""

SMALL_SHARE: Final = 1 / 16
"""A client has few tokens up to this share of the limit."""

MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0


def admissible(wait_s: float, request_s: float, remaining_s: float, priority: Priority) -> bool:
    """Returns whether a request may be queued.

    Without a wait, every request with time left is admitted: an idle core costs other requests nothing, and its call
    corrects a wrong estimate. Otherwise the same limit on the wait applies to short and long requests. A limit on the
    sum alone would let short requests fill every gap of a full queue, so that no long request is ever admitted.

    Args:
        wait_s: predicted wait in the queue.
        request_s: predicted duration of the request itself.
        remaining_s: time to its deadline.
        priority: its priority.
    """
    if wait_s <= 0:
        return remaining_s > 0
    return wait_s <= remaining_s * MAX_WAIT_SHARE[priority] and wait_s + request_s <= remaining_s


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
        self._reserved: dict[object, str] = {}  # clients by request
        self.mean_request_s = 0.0  # moving average of one core's seconds for a request
        self._request_s_of: OrderedDict[str, float] = OrderedDict()  # the same of each client, the latest ones last
        self._jitter = random.Random()  # noqa: S311  # spreads retries out, and is not a secret

    def reserve(
        self, request: object, remaining_s: float, priority: Priority, *, complete: bool, client: str = ""
    ) -> None:
        """Decides on a request whose body was not read yet, and reserves its place in the queue.

        Only a `complete` request, whose body has arrived, gets a reservation. Reservations count as queued work:
        otherwise the server would parse and encode far more requests than it can admit. A client that has not sent its
        body yet may never send it, and must not keep others out. A second reservation of a request has no effect.
        `client` is the name of the client that sends the request.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Unavailable: no request can meet this deadline, or the controller is closed.
        """
        if request in self._reserved:
            return
        load = self._open_load()
        wait = len(self._reserved) * self.mean_request_s / load.cores + wait_s(load, priority)
        if not self._accepts(load, wait, 0.0, remaining_s, priority):
            # A client that is alone waits for all that is queued. Its refusals stay cheap.
            if load.has_others(client) or any(name != client for name in self._reserved.values()):
                wait = min(wait, self.wait_of(client, priority))
            self._check(load, wait, 0.0, remaining_s, priority)
        if complete:
            self._reserved[request] = client

    def commit(
        self,
        request: object,
        model: str,
        lengths: Sequence[int],
        remaining_s: float,
        priority: Priority,
        client: str = "",
    ) -> None:
        """Admits an encoded request and removes its reservation. The caller queues its sequences without delay.

        Args:
            request: the request that may have a reservation.
            model: the name of its model.
            lengths: tokens of each of its sequences. Without sequences, the request needs no place in the queue.
            remaining_s: time to its deadline.
            priority: its priority.
            client: its client.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Unavailable: the request cannot meet its deadline, the queues are full, or the controller is closed.
        """
        if lengths:
            self._decide(model, lengths, remaining_s, priority, client)
        self.release(request)

    def wait_of(self, client: str, priority: Priority) -> float:
        """Predicts the wait of a client's next request, if it is like its last ones."""
        reserved_s = {name: n * self._request_s(name) for name, n in Counter(self._reserved.values()).items()}
        return wait_s(self._load(), priority, None, self._request_s(client), client, reserved_s)

    def minimum_s(self, model: str | None = None, lengths: Sequence[int] = (1,)) -> float:
        """Predicts the seconds that the engine needs for a request alone.

        Args:
            model: the name of its model; None for the lower bound over all models.
            lengths: tokens of each of its sequences.
        """
        load = self._load()
        queues = load.models.values() if model is None else [load.models[model]]
        longest, total = max(lengths), work(lengths)
        return min(
            [max(one.latency.single_s(longest), one.latency.backlog_s(*total) / load.cores) for one in queues],
            default=0.0,
        )

    def release(self, request: object) -> None:
        """Removes the reservation of a request, if it has one."""
        self._reserved.pop(request, None)

    def close(self) -> None:
        """Refuses every request from now on."""
        self.closed = True

    def _decide(self, model: str, lengths: Sequence[int], remaining_s: float, priority: Priority, client: str) -> None:
        load = self._open_load()
        queue, longest = load.models[model], max(lengths)
        work_s, is_long = queue.work_s(lengths), queue.is_long(longest)
        request_s = max(queue.mean_call_s, queue.latency.single_s(longest), work_s)
        # The next request may be a short one, which does not wait for long ones.
        typical_s = min(work_s, LONG_S) if is_long else work_s
        self.mean_request_s += (typical_s - self.mean_request_s) / 16
        mean_s = self._request_s_of.get(client, typical_s)
        self._request_s_of[client] = mean_s + (typical_s - mean_s) / 16
        self._request_s_of.move_to_end(client)
        if len(self._request_s_of) > MAX_CLIENTS:
            self._request_s_of.popitem(last=False)
        wait = wait_s(load, priority, queue, request_s, is_long=is_long)
        # Under fair shares, at most as much comes before the request as was queued and as arrives until it is done.
        if not self._accepts(load, 2 * wait + request_s if wait else 0.0, request_s, remaining_s, priority):
            if load.has_others(client):
                wait = wait_s(load, priority, queue, request_s, client, is_long=is_long)
            self._check(load, wait, request_s, remaining_s, priority)
        if not self._has_room(load, sum(lengths), client):
            raise self._overloaded(wait)

    def _request_s(self, client: str) -> float:
        return self._request_s_of.get(client, self.mean_request_s)

    def _has_room(self, load: Load, tokens: int, client: str) -> bool:
        """Returns whether the queues take so many tokens more."""
        total = load.queued_tokens + tokens
        if total <= self.max_queued_tokens:
            return True
        own = load.queued_tokens_of(client) + tokens
        return own <= SMALL_SHARE * self.max_queued_tokens and total <= (1 + EXTRA_SHARE) * self.max_queued_tokens

    def _open_load(self) -> Load:
        if self.closed:
            raise draining()
        return self._load()

    def _accepts(self, load: Load, wait: float, request_s: float, remaining_s: float, priority: Priority) -> bool:
        return load.policy != "deadline" or admissible(wait, request_s, remaining_s, priority)

    def _check(self, load: Load, wait: float, request_s: float, remaining_s: float, priority: Priority) -> None:
        if not self._accepts(load, wait, request_s, remaining_s, priority):
            raise self._overloaded(wait) if remaining_s > 0 else deadline_exceeded()

    def _overloaded(self, wait: float) -> Unavailable:
        after = retry_after_s(wait, self._jitter.random())
        detail = "The queue is too long to meet the deadline of this request. Retry after the time in Retry-After."
        return Unavailable("overloaded", detail, retry_after=after)
