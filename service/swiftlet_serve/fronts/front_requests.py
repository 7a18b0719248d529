"""Admits and runs the requests of one front in the coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal, SwiftletError, TooManyRequests
from swiftlet_serve.fronts import messages
from swiftlet_serve.fronts.messages import Kind
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Outcome, Row


class RunningRequest:
    """An admitted request, until all of its rows are there."""

    __slots__ = ("number", "record", "rows", "unfinished")

    def __init__(self, number: int, rows: Sequence[asyncio.Future[Row]], record: RequestRecord) -> None:
        self.number = number
        self.rows = rows
        self.record = record
        self.unfinished = len(rows)


class FrontRequests:
    """Admits the requests of a front, queues them and sends their results."""

    def __init__(self, runtime: LocalRuntime, models: Sequence[str], send: Callable[[bytes], None]) -> None:
        """Starts with no requests.

        Args:
            runtime: the coordinator's runtime, with the one queue, admission and rate limiter.
            models: the keys of the models in the dispatcher, in the order of the front's numbers.
            send: sends a message to the front.
        """
        self._runtime = runtime
        self._models = models
        self._send = send
        self._running: dict[int, RunningRequest] = {}
        self._arriving: dict[int, list[Encoding]] = {}  # the first sequences of large requests

    def add_part(self, number: int, body: memoryview) -> None:
        """Keeps the first sequences of a request that is to be submitted.

        Raises:
            ValueError, struct.error: the message is invalid.
        """
        if number in self._running:
            raise ValueError("A request with this number is in progress.")
        self._arriving.setdefault(number, []).extend(messages.unpack_sequences(body))

    def submit(self, number: int, body: memoryview) -> None:
        """Admits a request and queues its sequences, or refuses it.

        Raises:
            ValueError, IndexError, struct.error: the message is invalid.
        """
        if number in self._running:
            raise ValueError("A request with this number is in progress.")
        model, last, deadline, priority, client, is_further = messages.unpack_submission(body)
        encodings = [*self._arriving.pop(number, []), *last]
        name, record = self._models[model], RequestRecord(account=client)
        lengths = [len(encoding.input_ids) for encoding in encodings]
        try:
            if not is_further:
                self._begin(client)
            self._runtime.admission.commit(None, name, lengths, deadline - time.monotonic(), priority, client)
            if client and self._runtime.rate_limiter is not None:
                self._runtime.rate_limiter.charge_tokens(client, time.monotonic(), sum(lengths))
            rows = self._runtime.dispatcher.submit(name, encodings, deadline, priority, record)
        except SwiftletError as error:
            self._send(messages.pack_error(number, error))
            return
        self._running[number] = request = RunningRequest(number, rows, record)
        for row in rows:
            row.add_done_callback(partial(self._on_row, request))
        self._send(messages.pack(Kind.ADMITTED, number))

    def cancel(self, number: int) -> None:
        """Removes a request, whose front needs no result any more. It may have ended meanwhile."""
        self._arriving.pop(number, None)
        request = self._running.pop(number, None)
        if request is not None:
            for row in request.rows:
                row.cancel()

    def charge(self, number: int, body: memoryview) -> None:
        """Counts a request that was never submitted, or those of a batch, for their client's rate limit.

        Raises:
            ValueError, struct.error: the message is invalid.
        """
        requests, client = messages.unpack_charge(body)
        try:
            self._begin(client)
        except TooManyRequests as error:  # the front has not known yet, and answers the batch
            self._send(messages.pack_error(number, error))
        if (limiter := self._runtime.rate_limiter) is not None and requests > 1:
            limiter.charge_requests(client, time.monotonic(), requests - 1)

    def close(self) -> None:
        """Removes all requests: the front is lost."""
        for number in list(self._running):
            self.cancel(number)
        self._arriving.clear()

    def _begin(self, client: str) -> None:
        """Counts a request. Raises TooManyRequests if the client exceeds its rate limits."""
        if client and self._runtime.rate_limiter is not None:
            self._runtime.rate_limiter.begin(client, time.monotonic())

    def _on_row(self, request: RunningRequest, row: asyncio.Future[Row]) -> None:
        request.unfinished -= 1
        if request.number not in self._running:
            return
        error = None if row.cancelled() else row.exception()
        if error is not None and not isinstance(error, Internal):
            self.cancel(request.number)
            self._send(messages.pack_error(request.number, _known(error)))
        elif not request.unfinished:
            del self._running[request.number]
            self._send_result(request, [_outcome(future) for future in request.rows])

    def _send_result(self, request: RunningRequest, outcomes: Sequence[Outcome], start: int = 0) -> None:
        message, end = messages.pack_result(request.number, outcomes, request.record, start)
        self._send(message)
        if end < len(outcomes):
            asyncio.get_running_loop().call_soon(self._send_result, request, outcomes, end)


def _outcome(row: asyncio.Future[Row]) -> Outcome:
    error = row.exception()
    if error is None:
        return row.result()
    return error if isinstance(error, Internal) else Internal("internal", "The model failed.")


def _known(error: BaseException) -> SwiftletError:
    return error if isinstance(error, SwiftletError) else Internal("internal", "The model failed.")
