"""Admits the requests of one model and queues their sequences, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from swiftlet_models.encodings import Encoding
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.scheduling.rate_limit import ClientRateLimiter
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.types import Deadline, Priority, Row


@dataclass(frozen=True, eq=False)
class ModelScheduler:
    """The local `pipeline.Scheduler`, over the queues of a dispatcher."""

    model: str  # its name in the dispatcher
    admission: AdmissionController
    dispatcher: Dispatcher
    stats: RequestStats  # counts the accepted requests
    rate_limiter: ClientRateLimiter | None  # counts the tokens of the admitted requests; None without a rate limit

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> Sequence[asyncio.Future[Row]]:
        lengths = [len(encoding.input_ids) for encoding in encodings]
        client, now = "" if record is None else record.account, time.monotonic()
        limiter = self.rate_limiter if client else None
        if limiter is not None and record is not None and not record.charged:
            limiter.check_tokens(client, now)  # other requests may have been charged since this one's head was read
        self.admission.commit(record, self.model, lengths, deadline - now, priority, client)
        if limiter is not None:
            limiter.charge_tokens(client, now, sum(lengths))
        if record is not None:
            record.charged = True
            if record.accept(len(lengths), sum(lengths)):
                self.stats.accept(record)
        return self.dispatcher.submit(self.model, encodings, deadline, priority, record)

    def minimum_s(self, lengths: Sequence[int]) -> float:
        return self.admission.minimum_s(self.model, lengths)
