"""The number of replicas that the autoscaler wants."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.ray_serve import autoscaling
from swiftlet_serve.ray_serve.autoscaling import QUEUE_WAIT, UTILIZATION, QueueWaitPolicy, wanted_replicas


@pytest.mark.parametrize(
    ("waits", "utilizations", "wanted"),
    [
        ([0.0, 0.0], [0.7, 0.7], 2),  # at the target
        ([0.0, 0.0], [0.75, 0.65], 2),
        ([0.0, 0.0], [0.95, 0.95], 3),
        ([0.0] * 4, [0.35] * 4, 2),
        ([0.0] * 4, [0.0] * 4, 1),  # never 0
        ([0.15, 0.15], [0.7, 0.7], 3),  # requests wait, whatever the engines do
        ([9.0, 9.0], [1.0, 1.0], 4),  # at most twice as many
        ([0.0, 0.4], [0.2, 1.0], 4),  # one that is overloaded counts
    ],
)
def test_replicas_follow_the_larger_need(waits, utilizations, wanted):
    assert wanted_replicas(waits, utilizations, 0.1, 0.7) == wanted


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(0, 1)), min_size=1, max_size=50))
def test_number_of_replicas_is_bounded_and_grows_with_the_need(replicas):
    waits, shares = zip(*replicas, strict=True)
    wanted = wanted_replicas(waits, shares, 0.1, 0.7)

    assert 1 <= wanted <= 2 * len(replicas)
    assert wanted_replicas([wait + 1 for wait in waits], shares, 0.1, 0.7) >= wanted


def context(**metrics: dict[str, float]) -> SimpleNamespace:
    return SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=3)


def test_policy_reads_the_metrics_of_the_replicas():
    policy = QueueWaitPolicy(target_wait_s=0.1, target_utilization=0.5)

    assert policy(context(**{QUEUE_WAIT: {"a": 0.0, "b": 0.0}, UTILIZATION: {"a": 1.0, "b": 0.5}})) == (3, {})


@pytest.mark.parametrize("metrics", [{}, {QUEUE_WAIT: {"a": 1.0}}])
def test_policy_changes_nothing_until_replicas_report(metrics):
    assert QueueWaitPolicy()(context(**metrics)) == (3, {})


def test_policy_works_in_a_controller_without_swiftlet():
    cloudpickle.register_pickle_by_value(autoscaling)
    try:
        pickled = cloudpickle.dumps(QueueWaitPolicy(0.1, 0.5))
    finally:
        cloudpickle.unregister_pickle_by_value(autoscaling)
    code = f"""
import sys
sys.modules["swiftlet_serve"] = None  # an import of it fails
import pickle
from types import SimpleNamespace
metrics = {{{QUEUE_WAIT!r}: {{"a": 0.0}}, {UTILIZATION!r}: {{"a": 1.0}}}}
print(pickle.loads({pickled!r})(SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=1))[0])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout == "2\n"
