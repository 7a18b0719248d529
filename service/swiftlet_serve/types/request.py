"""The deadline and the priority of a request."""

from __future__ import annotations

from typing import Literal

Deadline = float
"""The time after which the response is of no use, in seconds of `time.monotonic()`."""

Priority = Literal["interactive", "bulk"]
"""Interactive requests have a person waiting. Bulk requests yield to them."""
