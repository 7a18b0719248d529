"""Chooses the sequences of the next batch."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlet_serve.scheduling.latency_model import LatencyModel


def plan(lengths: Sequence[int], remaining_s: Sequence[float], latency: LatencyModel, token_budget: int) -> list[int]:
    """Chooses which of the queued sequences make the next batch.

    The oldest sequence is always chosen, so that none starves. The others are tried in order of the difference to its
    length. A sequence joins if the batch stays within the engine's limits and the budget, if the call gets no longer
    than by a separate call, and if the batch ends before the deadlines of all its sequences.

    Args:
        lengths: tokens of each queued sequence, oldest first; at least one.
        remaining_s: seconds until each sequence's deadline.
        latency: predicts the duration of a call, and has the limits of the engine.
        token_budget: tokens that this core should take at most, so that idle cores share the queue.

    Returns:
        Indices into `lengths`.
    """
    cost, oldest = latency.cost, lengths[0]
    batch, tokens, squares, longest, left = [0], oldest, oldest * oldest, oldest, remaining_s[0]
    seconds = latency.single_s(oldest)
    for i in sorted(range(1, len(lengths)), key=lambda i: abs(lengths[i] - oldest)):
        if len(batch) == cost.max_rows:
            break
        rows, length = len(batch) + 1, lengths[i]
        new_longest = max(longest, length)
        charge = rows * new_longest if cost.padded else tokens + length
        if tokens + length > token_budget or charge > cost.max_tokens:
            continue
        new_seconds = latency.call_s(rows, tokens + length, squares + length * length, new_longest)
        if new_seconds <= seconds + latency.single_s(length) and new_seconds <= min(left, remaining_s[i]):
            batch.append(i)
            tokens, squares, longest = tokens + length, squares + length * length, new_longest
            seconds, left = new_seconds, min(left, remaining_s[i])
    return batch
