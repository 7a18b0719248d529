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

Submit = Callable[[Sequence[Encoding], Deadline, Priority], Sequence[Awaitable[Row]]]
"""Queues all sequences of a request and returns an awaitable for the row of each.

`Dispatcher.submit` is one, for a given model. The caller cancels the rows that it no longer needs.
"""
