"""Rows that are kept for later requests: those of labels, which many requests name."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from swiftlet_models.encodings import Encoding, distinct, keys_of
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Priority, Row

MAX_BYTES: Final = 8 << 20
"""Of the rows of one version of a model, and what finds them: those of 4,800 labels, if they have 384 numbers."""
ENTRY_BYTES: Final = 200
"""What finds a row, and Python's share of the row itself."""

Submit = Callable[[Sequence[Encoding], Deadline, Priority, RequestRecord | None], Sequence[Awaitable[Row]]]


class KeptRows:
    """The rows of one version of a model.

    A sequence that is marked as `kept` is computed once, until its row was not used for so long that others took its
    space. The digest of its tokens finds it.
    """

    def __init__(self, submit: Submit, max_bytes: int = MAX_BYTES) -> None:
        """`submit` computes the rows that are not kept, as `pipeline.Scheduler.submit`."""
        self._submit = submit
        self._max_bytes = max_bytes
        self._rows: OrderedDict[bytes | int, Row] = OrderedDict()  # by digest; those that were used last come last
        self._bytes = 0

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> Sequence[Awaitable[Row]]:
        """Returns the rows that are kept, and submits the other sequences, with the arguments of `Submit`.

        A sequence that is marked and occurs several times is submitted once.
        """
        missing = {key: encoding for key, encoding in distinct(encodings).items() if key not in self._rows}
        computed = dict(zip(missing, self._submit([*missing.values()], deadline, priority, record), strict=True))
        if record is not None:
            record.kept_tokens = sum(len(encoding.input_ids) for encoding in encodings)
            record.kept_tokens -= sum(len(encoding.input_ids) for encoding in missing.values())
        for key, row in computed.items():
            if isinstance(key, bytes):
                computed[key] = future = asyncio.ensure_future(row)
                future.add_done_callback(partial(self._keep, key))
        return [computed[key] if key in computed else self._found(key) for key in keys_of(encodings)]

    def _found(self, key: bytes | int) -> Awaitable[Row]:
        self._rows.move_to_end(key)
        future: asyncio.Future[Row] = asyncio.get_running_loop().create_future()
        future.set_result(self._rows[key])
        return future

    def _keep(self, digest: bytes, computed: asyncio.Future[Row]) -> None:
        if computed.cancelled() or computed.exception() is not None:
            return
        row = computed.result()
        if digest not in self._rows:  # nor computed for another request meanwhile
            self._rows[digest] = row.copy()  # it may be a part of its batch's memory
            self._bytes += ENTRY_BYTES + row.nbytes
        while self._bytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._bytes -= ENTRY_BYTES + oldest.nbytes
