"""The deadline and the priority of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.types.batch import Row

Deadline = float
"""The time after which the response is of no use, in seconds of `time.monotonic()`."""

Priority = Literal["interactive", "bulk"]
"""Interactive requests have a person waiting. Bulk requests yield to them."""

Scheduler = Literal["deadlines", "fifo"]
"""What may come in: what can be answered by its deadline, or whatever there is room for."""

Submit = Callable[[Sequence[Encoding], Deadline, Priority], Sequence[Awaitable[Row]]]
"""The seam of the service: all encodings of a request in, for each its row out, or all are refused at once.

A `Batcher` is one; so is a fake in a test. Whoever no longer wants a row cancels it.
"""
