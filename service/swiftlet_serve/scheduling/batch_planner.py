"""Chooses the sequences of the next batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Final

from swiftlet_serve.scheduling.latency_model import LatencyModel
from swiftlet_serve.scheduling.queue import LOOKAHEAD, QueuedSequence, SequenceQueue

ENOUGH: Final = 2
"""The look ends at this multiple of what fits, if the engine does not pad: similar lengths gain nothing."""


def choose(
    queue: SequenceQueue,
    now: float,
    token_budget: int,
    *,
    trusts_predictions: bool,
    takes_suspects: bool,
    keeps_deadlines: bool = True,
) -> tuple[list[QueuedSequence], list[QueuedSequence]]:
    """Chooses a batch: the first suspect alone, or sequences that are not suspects.

    Args:
        queue: the sequences.
        now: the time.
        token_budget: tokens that this core should take at most, so that idle cores share the queue.
        trusts_predictions: whether a sequence that is predicted to miss its deadline is too late.
        takes_suspects: whether a suspect may run. None does while another one runs.
        keeps_deadlines: whether the batch ends before the deadlines of all its sequences, as predicted.

    Returns:
        The batch, which is empty if no sequence can start, and the sequences that are too late or not waited for.
    """
    latency, cost = queue.model.latency, queue.model.latency.cost
    pads = cost.padded or cost.padded_attention
    enough = math.inf if pads else ENOUGH * min(token_budget, cost.max_tokens)
    rows = max(LOOKAHEAD, cost.max_rows) if pads else ENOUGH * cost.max_rows
    dropped, startable, lengths, remaining_s, tokens = [], [], [], [], 0
    for item in islice(queue.in_turn(), rows):
        left, length = item.deadline - now, item.length
        if item.row.done() or left <= 0 or (trusts_predictions and left < latency.single_s(length)):
            dropped.append(item)
        elif not item.suspect:
            startable.append(item)
            lengths.append(length)
            remaining_s.append(left if keeps_deadlines else math.inf)
            tokens += length
            if tokens > enough:
                break
        elif takes_suspects:
            return [item], dropped
    if len(startable) < 2:
        return startable, dropped
    return [startable[i] for i in plan(lengths, remaining_s, latency, token_budget)], dropped


def plan(lengths: Sequence[int], remaining_s: Sequence[float], latency: LatencyModel, token_budget: int) -> list[int]:
    """Chooses which of the queued sequences make the next batch.

    The oldest sequence is always chosen, so that none starves. If the engine pads, the others are tried in order of the
    difference to its length, and otherwise by age. A sequence joins if the batch stays within the engine's limits and
    the budget, if the call gets no longer than by a separate call, as it does without padding, and if the batch ends
    before the deadlines of all its sequences.

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
    seconds, most = latency.single_s(oldest), min(token_budget, cost.max_tokens)
    others: Sequence[int] = range(1, len(lengths))
    if pads := cost.padded or cost.padded_attention:
        others = sorted(others, key=lambda i: abs(lengths[i] - oldest))
    for i in others:
        if len(batch) == cost.max_rows:
            break
        rows, length = len(batch) + 1, lengths[i]
        new_longest = max(longest, length)
        if tokens + length > most or (cost.padded and rows * new_longest > cost.max_tokens):
            continue
        new_seconds = latency.call_s(rows, tokens + length, squares + length * length, new_longest)
        new_left = min(left, remaining_s[i])
        if new_seconds <= new_left and (not pads or new_seconds <= seconds + latency.single_s(length)):
            batch.append(i)
            tokens, squares, longest = tokens + length, squares + length * length, new_longest
            seconds, left = new_seconds, new_left
    return batch
