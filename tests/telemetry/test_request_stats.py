"""Request statistics: histograms, counters that balance, copies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.request_stats import OUTCOMES, REQUEST_BUCKETS_S, Histogram, RequestStats


@given(st.lists(st.floats(0, 20), max_size=50))
def test_histogram_counts_each_value_in_the_first_bucket_that_contains_it(values):
    histogram = Histogram(REQUEST_BUCKETS_S)
    for value in values:
        histogram.add(value)

    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
    for at, bound in enumerate(histogram.bounds):
        assert sum(histogram.counts[: at + 1]) == sum(value <= bound for value in values)


STEPS = st.lists(st.tuples(st.sampled_from(["begin", "accept", "end"]), st.integers(0, 9), st.integers(0, 5)))
RESPONSES = [(200, ""), (422, "answer_too_large"), (500, "internal"), (503, "draining"), (504, "deadline_exceeded")]


@given(STEPS)
def test_counters_balance_after_every_event_in_any_order(steps):
    stats, open_, ended = RequestStats(), [], 0
    stats.add_model("a", "classify")
    stats.add_model("b", "qa")
    for event, which, how in steps:
        record = open_[which % len(open_)] if open_ else None
        if event == "begin" or record is None:
            open_.append(RequestRecord(model="ab"[which % 2]))
        elif event == "accept" and not record.accepted:
            record.accept(1, 4)
            stats.accept(record)
        elif event == "end":
            record.status, record.code = [*RESPONSES, (None, "")][how]
            if not record.accepted and record.status == 200:
                continue  # only accepted requests are answered
            stats.finish(record)
            open_.remove(record)
            ended += 1
        for name, model in stats.models.items():
            waiting = sum(one.accepted and one.model == name for one in open_)
            assert model.in_flight == waiting
            assert model.accepted == model.in_flight + sum(model.durations[outcome].count for outcome in OUTCOMES)
    finished = sum(model.accepted - model.in_flight for model in stats.models.values())
    assert sum(stats.refused.values()) + finished == ended


def test_copy_does_not_change_with_the_original():
    stats = RequestStats()
    stats.add_model("a", "classify")
    record = RequestRecord(model="a")
    record.accept(1, 4)
    stats.accept(record)
    copy = stats.copy()
    record.status = 200
    record.add_stage("infer", 1.0, 2.0)
    stats.finish(record)
    stats.count_refused("overloaded")
    stats.add_batch("a", 2, 8, 1)

    model = copy.models["a"]
    assert (model.accepted, model.in_flight, model.padding_tokens, copy.refused) == (1, 1, 0, {})
    assert model.durations["answered"].count == model.stages["infer"].count == model.batch_sizes.count == 0
    assert stats.models["a"].stages["infer"].sum == 1.0


def test_exceeded_deadline_counts_for_accepted_and_refused_requests():
    stats = RequestStats()
    stats.add_model("a", "classify")
    for accepted in (True, False):
        record = RequestRecord(model="a", timeout_s=0.02, status=504, code="deadline_exceeded")
        if accepted:
            record.accept(1, 4)
            stats.accept(record)
        stats.finish(record)

    assert stats.unmet_deadlines["deadline_exceeded"].count == stats.deadline_exceeded == 2
    assert stats.copy().unmet_deadlines["deadline_exceeded"].count == 2


def test_least_overhead_is_the_shortest_time_outside_the_queue_and_the_engine():
    stats = RequestStats()
    stats.add_model("a", "classify")
    for elsewhere_s in (0.0005, 0.0002, 0.0008):
        record = RequestRecord(model="a", started=10.0, ended=12.0 + elsewhere_s, status=200)
        record.accept(1, 4)
        stats.accept(record)
        record.add_call(submitted=10.0, started=11.0, ended=12.0, engine_s=1.0, size=1)
        stats.finish(record)

    assert stats.minimum_overhead_s == pytest.approx(0.0002)
