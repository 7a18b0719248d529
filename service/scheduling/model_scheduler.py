"""Admits the requests of one model and queues their sequences, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.scheduling.admission import AdmissionController
from swiftlet_serve.service.scheduling.dispatcher import Dispatcher
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from swiftlet_serve.service.telemetry.request_stats import RequestStats
from swiftlet_serve.service.types import Deadline, Priority, Row


class ModelScheduler:
    """The local `pipeline.Scheduler`, over the queues of a dispatcher."""

    def __init__(self, model: str, admission: AdmissionController, dispatcher: Dispatcher, stats: RequestStats) -> None:
        """`model` is the name of a model that the dispatcher has. `stats` counts its accepted requests."""
        self._model = model
        self._admission = admission
        self._dispatcher = dispatcher
        self._stats = stats

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> Sequence[asyncio.Future[Row]]:
        lengths = [len(encoding.input_ids) for encoding in encodings]
        client = "" if record is None else record.account
        self._admission.commit(record, self._model, lengths, deadline - time.monotonic(), priority, client)
        if record is not None:
            record.accept(len(lengths), sum(lengths))
            self._stats.accept(record)
        return self._dispatcher.submit(self._model, encodings, deadline, priority, record)

    def least_s(self, lengths: Sequence[int]) -> float:
        return self._admission.least_s(self._model, lengths)
