"""Statistics of several processes, as one."""

from __future__ import annotations

import random

import pytest
from pydantic_core import from_json, to_json

from swiftlet_serve.fronts.stats_messages import (
    dump_snapshot,
    dump_stats,
    load_report,
    load_snapshot,
    load_stats,
)
from swiftlet_serve.telemetry.prometheus import SnapshotCollector
from swiftlet_serve.telemetry.request_record import STAGES, RequestRecord
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.telemetry.snapshot import ModelInfo, QueueState, Snapshot

ENDS = [(200, ""), (500, "internal"), (504, "deadline_exceeded"), (None, ""), (503, "overloaded")]


def new_stats():
    stats = RequestStats()
    stats.add_model("a", "classify")
    stats.add_model("b", "qa")
    return stats


def count(stats: RequestStats, draw: random.Random, requests: int) -> None:
    """Counts random requests, of which some do not end."""
    for _ in range(requests):
        record = RequestRecord(model=draw.choice("ab"), route="/classify", dialect=draw.choice(["", "tei"]))
        record.started, record.timeout_s = 0.0, 0.5
        record.truncated = ("/inputs",) * draw.randrange(3)
        if accepted := draw.random() < 0.8:
            record.accept(1, 4)
            stats.accept(record)
            stats.add_batch(record.model, 1, 4, 2)
            record.add_stage(draw.choice(STAGES), 0.0, draw.random())
        if draw.random() < 0.8 or not accepted:
            record.status, record.code = draw.choice(ENDS)
            record.ended, record.trace_id = draw.random(), draw.choice(["", "0af7"])
            stats.finish(record)


def through_json(stats: RequestStats) -> RequestStats:
    return load_stats(from_json(to_json(dump_stats(stats))))


def samples(stats: RequestStats) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    snapshot = Snapshot([], stats, QueueState(0, 0, 0.0, 0.0, 0, 0.0), 2, True, 0, 0, {}, 0, 0.0)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in SnapshotCollector(snapshot).collect()
        for sample in family.samples
    }


@pytest.mark.parametrize("seed", range(5))
def test_sum_of_two_processes_equals_the_statistics_of_one(seed):
    parts, whole = [new_stats(), new_stats()], new_stats()
    for number, part in enumerate(parts):
        count(part, random.Random(seed + 100 * number), 60)
        count(whole, random.Random(seed + 100 * number), 60)
    joined = new_stats()
    for part in parts:
        joined.add(through_json(part))

    assert samples(joined) == pytest.approx(samples(whole))
    assert sorted(joined.models["a"].recent) == sorted(whole.models["a"].recent)
    assert joined.models["a"].exemplars.keys() == whole.models["a"].exemplars.keys()


def test_requests_of_a_lost_process_end_as_cancelled():
    stats = new_stats()
    count(stats, random.Random(1), 50)
    model = stats.models["a"]
    in_flight, cancelled = model.in_flight, model.durations["cancelled"].count
    stats.end_in_flight(0.5)

    assert in_flight > 0
    assert (model.in_flight, model.durations["cancelled"].count) == (0, cancelled + in_flight)
    assert model.accepted == sum(histogram.count for histogram in model.durations.values())


def test_snapshot_comes_out_as_it_went_in():
    stats = new_stats()
    count(stats, random.Random(2), 30)
    models = [ModelInfo("a", "classify", "bert", "int8", "native", "1")]
    snapshot = Snapshot(models, stats, QueueState(1, 2, 3.0, 4.0, 5, 6.0), 2, True, 3, 4, {"serving": 9}, 7, 0.5, 2, 1)
    found = load_snapshot(from_json(to_json(dump_snapshot(snapshot, 42))))

    assert samples(found.stats) == pytest.approx(samples(stats))
    assert (found.models, found.queue, found.workers, found.pid) == (models, snapshot.queue, {"serving": 9}, 42)
    assert (found.cores, found.fronts, found.front_restarts, found.connections) == (2, 2, 1, 7)


@pytest.mark.parametrize("fields", [[], {}, {"stats": []}, {"stats": {"models": {"a": 1}}}, None])
def test_invalid_report_raises(fields):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        load_report(fields)
