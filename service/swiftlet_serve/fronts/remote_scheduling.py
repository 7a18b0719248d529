"""Scheduling in another process: the front's side of admission, rate limits and the queue."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import SwiftletError, TooManyRequests, deadline_exceeded, draining
from swiftlet_serve.fronts import messages
from swiftlet_serve.fronts.load_page import LoadState
from swiftlet_serve.fronts.messages import Kind, Result, Submission
from swiftlet_serve.scheduling.admission import AdmissionController, admissible
from swiftlet_serve.scheduling.latency_model import LatencyModel
from swiftlet_serve.scheduling.rate_limit import MAX_CLIENTS, ClientRateLimiter
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.types import Cost, Deadline, Outcome, Priority, Row

Send = Callable[[bytes], None]
CHARGES: Final = 1 << 63  # from here on, numbers are of charges


class RemoteRateLimiter(ClientRateLimiter):
    """Knows which clients the coordinator has refused, and until when.

    The coordinator counts a request when it is submitted, or at its end if it was never submitted. After a refusal, any
    front refuses the client until the time in its Retry-After.
    """

    def __init__(self, charge: Callable[[str, int], None]) -> None:
        """`charge` has the coordinator count requests of a client."""
        super().__init__()
        self._charge = charge
        self._refused: OrderedDict[str, tuple[float, str, str]] = OrderedDict()  # until when, and the error's words

    def begin(self, client: str, now: float) -> None:
        until, code, detail = self._refused.get(client, (now, "", ""))
        if until > now:
            raise TooManyRequests(code, detail, retry_after=until - now)

    def charge_requests(self, client: str, now: float, requests: int) -> None:  # noqa: ARG002  # the coordinator's clock
        self._charge(client, requests)

    def refuse(self, client: str, error: TooManyRequests, now: float) -> None:
        """Notes that the coordinator has refused a client. Does not keep the error, whose trace holds its request."""
        self._refused[client] = now + (error.retry_after or 0.0), error.code, error.detail
        self._refused.move_to_end(client)
        if len(self._refused) > MAX_CLIENTS:
            self._refused.popitem(last=False)


class RemoteAdmission(AdmissionController):
    """Refuses requests before their bodies are read, by the load that the coordinator published."""

    def __init__(
        self,
        costs: Mapping[str, Cost],
        load: Callable[[], LoadState],
        charge: Callable[[str], None] | None,
        max_queued_tokens: int,
    ) -> None:
        """Creates the admission of a front.

        Args:
            costs: the costs of the models' engines, in the order of the coordinator's numbers.
            load: returns the coordinator's load.
            charge: counts a request that is never submitted for its client's rate limit; None without a limit.
            max_queued_tokens: limits the queues of the coordinator.
        """
        super().__init__(_no_load, max_queued_tokens)
        self._latencies = {name: LatencyModel(cost) for name, cost in costs.items()}
        self._published = load
        self._charge = charge
        self._uncharged: set[object] = set()

    def reserve(
        self, request: object, remaining_s: float, priority: Priority, *, complete: bool, client: str = ""
    ) -> None:
        if request in self._reserved:
            return
        if self._charge is not None:
            self._uncharged.add(request)
        load = self._published()
        if self.closed or load.closed:
            raise draining()
        reserved = sum([holder == client for holder in self._reserved.values()])
        wait = load.wait_s(client, priority, time.monotonic()) + reserved * load.mean_request_s / load.cores
        if not admissible(wait, 0.0, remaining_s, priority):
            raise self._overloaded(wait) if remaining_s > 0 else deadline_exceeded()
        if complete:
            self._reserved[request] = client

    def minimum_s(self, model: str | None = None, lengths: Sequence[int] = (1,)) -> float:
        load = self._published()
        for latency, coefficients in zip(self._latencies.values(), load.coefficients, strict=False):
            latency.coefficients = coefficients
        asked = self._latencies.values() if model is None else [self._latencies[model]]
        work = len(lengths), sum(lengths), sum([n * n for n in lengths])
        return min(
            [max(latency.single_s(max(lengths)), latency.backlog_s(*work) / load.cores) for latency in asked],
            default=0.0,
        )

    def submitted(self, request: object) -> None:
        """Notes that a request was submitted: the coordinator decides on it, and counts it, from now on."""
        self._reserved.pop(request, None)
        self._uncharged.discard(request)

    def release(self, request: object) -> None:
        super().release(request)
        if request in self._uncharged:
            self._uncharged.discard(request)
            if self._charge is not None and isinstance(request, RequestRecord):
                self._charge(request.account)


def _no_load() -> NoReturn:
    raise NotImplementedError("The queues are in another process.")


class WaitingRequest:
    """A submitted request, until its result is there."""

    __slots__ = ("accepted", "received", "record", "rows", "tokens", "unsent")

    def __init__(self, rows: list[asyncio.Future[Row]], record: RequestRecord | None, submission: Submission) -> None:
        self.rows = rows
        self.unsent: Submission | None = submission  # until its last part is sent
        self.received = 0  # outcomes of rows
        self.record = record
        self.tokens = sum([len(encoding.input_ids) for encoding in submission.encodings])
        self.accepted = False


def _deliver(rows: Sequence[asyncio.Future[Row]], outcomes: Sequence[Outcome]) -> None:
    """Sets the results of rows that wait. Raises ValueError if there are not as many outcomes."""
    for row, outcome in zip(rows, outcomes, strict=True):
        if row.done():
            continue
        if isinstance(outcome, SwiftletError):
            row.set_exception(outcome)
        else:
            row.set_result(outcome)


class CoordinatorRequests:
    """The requests that this front has submitted to the coordinator."""

    def __init__(self, send: Send, stats: RequestStats, rate_limiter: RemoteRateLimiter | None) -> None:
        """Starts with no requests.

        Args:
            send: sends a message to the coordinator.
            stats: counts the accepted requests.
            rate_limiter: gets to know the clients that the coordinator refuses; None without a rate limit.
        """
        self._send = send
        self._stats = stats
        self._rate_limiter = rate_limiter
        self._numbers = itertools.count(1)
        self._waiting: dict[int, WaitingRequest] = {}
        self._charged: dict[int, str] = {}  # clients by the number of the charge: the latest ones
        self._charge_numbers = itertools.count(CHARGES)

    def submit(
        self,
        model: int,
        encodings: Sequence[Encoding],
        deadline: Deadline,
        priority: Priority,
        record: RequestRecord | None,
    ) -> list[asyncio.Future[Row]]:
        """Submits a request. Each row raises the coordinator's error if it refuses the request."""
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        rows: list[asyncio.Future[Row]] = [loop.create_future() for _ in encodings]
        client = "" if record is None else record.account
        is_further = record is not None and record.charged
        if record is not None:
            record.charged = True
        submission = Submission(model, list(encodings), deadline, priority, client, is_further)
        self._waiting[number] = WaitingRequest(rows, record, submission)
        self._send_from(number, 0)
        rows[-1].add_done_callback(partial(self._on_done, number))  # a caller cancels all rows of a request, or none
        return rows

    def _send_from(self, number: int, start: int) -> None:
        """Sends the sequences of a request from `start` on, a part in each iteration, unless its caller has gone."""
        request = self._waiting.get(number)
        if request is None or request.unsent is None:
            return
        message, end = messages.pack_submission(number, request.unsent, start)
        self._send(message)
        if end < len(request.unsent.encodings):
            asyncio.get_running_loop().call_soon(self._send_from, number, end)
        else:
            request.unsent = None

    def charge(self, client: str, requests: int = 1) -> None:
        """Counts a request that was never submitted, or those of a batch, for their client's rate limit."""
        number = next(self._charge_numbers)
        self._charged[number] = client
        if len(self._charged) > MAX_CLIENTS:
            del self._charged[next(iter(self._charged))]
        self._send(messages.pack_charge(number, requests, client))

    def on_admitted(self, number: int) -> None:
        """Accepts and counts a request that the coordinator has queued."""
        if (request := self._waiting.get(number)) is not None:
            self._accept(request)

    def on_refused(self, number: int, error: SwiftletError) -> None:
        """Ends a request that the coordinator refuses, or whose engine failed."""
        request = self._waiting.pop(number, None)
        if self._rate_limiter is not None and isinstance(error, TooManyRequests):
            charged = self._charged.pop(number, "")
            client = charged if request is None or request.record is None else request.record.account
            self._rate_limiter.refuse(client, error, time.monotonic())
        for row in [] if request is None else request.rows:
            if not row.done():
                row.set_exception(error)

    def on_part(self, number: int, outcomes: Sequence[Outcome]) -> None:
        """Delivers some rows of a request, before the last ones.

        Raises:
            ValueError: there are too many.
        """
        request = self._waiting.get(number)
        if request is not None:
            start, request.received = request.received, request.received + len(outcomes)
            _deliver(request.rows[start : request.received], outcomes)

    def on_result(self, number: int, result: Result) -> None:
        """Delivers the last rows of a request.

        Raises:
            ValueError: their number is wrong.
        """
        request = self._waiting.pop(number, None)
        if request is None:  # it was cancelled meanwhile
            return
        if request.record is not None:
            request.record.batch_size = result.batch_size
            for stage, span in result.stages.items():
                request.record.add_stage(stage, *span)
        _deliver(request.rows[request.received :], result.outcomes)

    def _accept(self, request: WaitingRequest) -> None:
        if request.record is not None and not request.accepted:
            request.accepted = True
            if request.record.accept(len(request.rows), request.tokens):
                self._stats.accept(request.record)

    def _on_done(self, number: int, _: object) -> None:
        """Cancels a request whose caller has gone. The coordinator counts only requests that were submitted whole."""
        request = self._waiting.pop(number, None)
        if request is None:
            return
        unsent = request.unsent
        if unsent is not None and not unsent.is_further and self._rate_limiter is not None:
            self.charge(unsent.client)
        self._send(messages.pack(Kind.CANCEL, number))


class RemoteScheduler:
    """The `pipeline.Scheduler` of one model in a front."""

    def __init__(
        self, model: str, index: int, requests: CoordinatorRequests, admission: RemoteAdmission, stats: RequestStats
    ) -> None:
        """Creates the scheduler of a model, which has this index at the coordinator."""
        self._model = model
        self._index = index
        self._requests = requests
        self._admission = admission
        self._stats = stats

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> list[asyncio.Future[Row]]:
        if not encodings:  # it needs no engine, and its client is charged when it ends
            if record is not None and record.accept(0, 0):
                self._stats.accept(record)
            return []
        self._admission.submitted(record)
        return self._requests.submit(self._index, encodings, deadline, priority, record)

    def minimum_s(self, lengths: Sequence[int]) -> float:
        return self._admission.minimum_s(self._model, lengths)
