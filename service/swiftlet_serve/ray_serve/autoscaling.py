"""The number of replicas that a deployment of Ray Serve needs, from the queues and engines of its replicas.

Ray's default policy counts requests. A request may be one short text or a thousand long ones, so their count says
little.

Ray's controller unpickles this module, so it imports nothing but the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

QUEUE_WAIT: Final = "queue_wait_s"
UTILIZATION: Final = "utilization"
"""The names of the metrics that a replica records, each averaged by Ray over the look-back period: the time that a new
request would wait, in seconds, and the share of time that its engines' cores run batches."""

TOLERANCE: Final = 0.1  # a smaller difference from the target changes nothing, as in Kubernetes


class QueueWaitPolicy:
    """A policy of Ray Serve. Ray applies the bounds, the factors and the delays of its autoscaling configuration."""

    def __init__(self, target_wait_s: float = 0.1, target_utilization: float = 0.7) -> None:
        self._target_wait_s = target_wait_s
        self._target_utilization = target_utilization

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Returns the wanted number of replicas, and no state. `context` is Ray's `AutoscalingContext`."""
        metrics = context.aggregated_metrics or {}
        waits, shares = (list(metrics.get(name, {}).values()) for name in (QUEUE_WAIT, UTILIZATION))
        if not waits or not shares:
            return context.target_num_replicas, {}  # no replica has reported yet
        return wanted_replicas(waits, shares, self._target_wait_s, self._target_utilization), {}


def wanted_replicas(
    waits: Collection[float], utilizations: Collection[float], target_wait_s: float, target_utilization: float
) -> int:
    """Returns the number of replicas at which the larger of two needs is met.

    The queues are empty at any load below capacity, so the wait alone would shrink a deployment until requests wait.
    The utilisation is at most 1, so it alone would let a deployment that is far too small grow in small steps.

    Args:
        waits: of each replica, the time that a new request would wait, in seconds.
        utilizations: the share of time that the cores of each replica run batches.
        target_wait_s: the wait to keep.
        target_utilization: the utilisation to keep.
    """
    reporting = len(utilizations)
    ratio = max(sum(waits) / len(waits) / target_wait_s, sum(utilizations) / reporting / target_utilization)
    if abs(ratio - 1) <= TOLERANCE:
        return reporting
    return max(1, math.ceil(reporting * min(ratio, 2.0)))
