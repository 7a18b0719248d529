"""Both autoscalers, by CPU and by KEDA: their schemas, the data of their queries, and a simulation of their choice."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml

from tests.deploy.test_k8s import K8S, MAX_UTILISATION, OBJECTIVE_S, kustomize_version, one, render
from tests.deploy.test_operators import refusals
from tests.support.fakes import PATIENCE_S

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
pytestmark = pytest.mark.skipif(kustomize_version() < 5, reason="needs kubectl with Kustomize 5")

REPLICA_RATE = 64.0  # requests per second
TARGETS = {"cpu": MAX_UTILISATION, "queue-wait": OBJECTIVE_S / 3, "utilisation": MAX_UTILISATION}


@pytest.fixture(params=["cpu", "gpu"])
def with_keda(request, tmp_path) -> list[dict[str, Any]]:
    """The manifests of an overlay with KEDA instead of the autoscaler and of a fixed number of replicas."""
    shutil.copytree(K8S, tmp_path / "k8s")
    path = tmp_path / "k8s/overlays" / request.param / "kustomization.yaml"
    overlay = yaml.safe_load(path.read_text("utf-8"))
    overlay["components"] = [*set(overlay["components"]) - {"../../autoscaler"}, "../../keda"]
    overlay.pop("replicas", None)
    path.write_text(yaml.safe_dump(overlay))
    return render(path.parent)


def test_keda_is_the_only_autoscaler(with_keda):
    scaled = one(with_keda, "ScaledObject")

    assert refusals(scaled) == []
    assert not [each for each in with_keda if each["kind"] == "HorizontalPodAutoscaler"]
    assert scaled["spec"]["scaleTargetRef"] == {"name": one(with_keda, "Deployment")["metadata"]["name"]}
    assert scaled["metadata"]["namespace"] == one(with_keda, "Deployment")["metadata"]["namespace"]
    assert "replicas" not in one(with_keda, "Deployment")["spec"]
    assert scaled["spec"]["minReplicaCount"] > one(with_keda, "PodDisruptionBudget")["spec"]["maxUnavailable"]


def test_autoscaler_reads_the_cpu_only():
    """A metric that cannot be read would stop every scaling down."""
    (metric,) = one(render(K8S / "overlays/cpu"), "HorizontalPodAutoscaler")["spec"]["metrics"]

    assert metric["resource"] == {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 100 * TARGETS["cpu"]},
    }


@cache
def scaled_object() -> Any:
    return yaml.safe_load((K8S / "keda/scaledobject.yaml").read_text("utf-8"))["spec"]


def triggers() -> dict[str, Any]:
    return {each["name"]: each["metadata"] for each in scaled_object()["triggers"]}


def test_keda_keeps_the_replicas_without_data():
    assert scaled_object()["fallback"]["behavior"] == "currentReplicas"
    assert all(each["ignoreNullValues"] == "false" for each in triggers().values())


def test_keda_has_the_behavior_and_the_limits_of_the_autoscaler():
    autoscaler, keda = one(render(K8S / "overlays/cpu"), "HorizontalPodAutoscaler")["spec"], scaled_object()

    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == autoscaler["behavior"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (autoscaler["minReplicas"], autoscaler["maxReplicas"])
    assert {name: float(each["threshold"]) for name, each in triggers().items()} == pytest.approx(
        {name: target for name, target in TARGETS.items() if name != "cpu"}
    )


@needs_promtool
def test_queries_sum_over_the_replicas(tmp_path):
    series = []
    for pod, wait, busy in (("a", "0.2", 30), ("b", "0.05", 90)):  # seconds, and seconds of busy cores in a minute
        labels = f'{{namespace="swiftlet",job="swiftlet",instance="{pod}:9000",pod="{pod}"}}'
        series += [
            {"series": f"swiftlet_queue_wait_seconds{labels}", "values": f"{wait}x10"},
            {"series": f"swiftlet_engine_busy_seconds_total{labels}", "values": f"0+{busy}x10"},
            {"series": f"swiftlet_engine_cores{labels}", "values": "2x10"},
        ]
    others = [{**each, "series": each["series"].replace('namespace="swiftlet"', 'namespace="o"')} for each in series]
    expected = {"queue-wait": 0.25, "utilisation": 0.25 + 0.75}
    checks = [
        {"expr": f"round({each['query']}, 1e-6)", "eval_time": "9m", "exp_samples": [{"value": expected[name]}]}
        for name, each in triggers().items()
    ]
    path = tmp_path / "queries.yml"
    test = {"interval": "1m", "input_series": [*series, *others], "promql_expr_test": checks}
    path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))  # JSON is YAML
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 0, done.stdout + done.stderr


# A simulation at a steady load


def wait_s(utilisation: float, service_s: float) -> float:
    """Returns the mean wait before one core with a constant service time. Above its capacity, the wait is long."""
    return service_s * utilisation / (2 * (1 - utilisation)) if utilisation < 0.99 else 50 * service_s


def autoscale(metrics: list[str], load: float, replicas: int) -> list[int]:
    """Returns the replicas that the documented rule of the autoscaler gives in 4 hours of steady load, every 15 s."""
    window_s = scaled_object()["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"][
        "stabilizationWindowSeconds"
    ]
    wanted, history = [], [replicas]
    for _ in range(960):
        busy = min(load / (replicas * REPLICA_RATE), 1.0)
        readings = {"cpu": busy, "utilisation": busy, "queue-wait": wait_s(busy, 2 / REPLICA_RATE)}
        ratios = [readings[each] / TARGETS[each] for each in metrics]
        proposals = [replicas if abs(ratio - 1) <= 0.1 else math.ceil(replicas * ratio) for ratio in ratios]
        history = [*history, max(proposals)][-window_s // 15 :]
        proposal = max(proposals) if max(proposals) > replicas else min(replicas, max(history))
        replicas = min(max(proposal, replicas - 1, 2), 2 * replicas, 20)
        wanted.append(replicas)
    return wanted


@pytest.mark.parametrize("load", range(20, 800, 60))
@pytest.mark.parametrize("metrics", [["cpu"], ["queue-wait", "utilisation"]], ids=["cpu", "keda"])
def test_autoscaler_settles_at_a_load_that_holds_the_objective(metrics, load):
    for start in (2, 20):
        settled = autoscale(metrics, load, start)[-240:]

        assert len(set(settled)) == 1
        assert load / (settled[0] * REPLICA_RATE) < 0.8 or settled[0] == 20


def test_autoscaler_does_not_settle_with_the_queue_metric_alone():
    assert len(set(autoscale(["queue-wait"], 400, 10)[-240:])) > 1
