"""The Kubernetes manifests: valid, consistent with the image and the server, and sized by measurements."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from swiftlet_serve import server
from swiftlet_serve.http import dialects
from swiftlet_serve.http.connections import port
from swiftlet_serve.settings import Settings
from tests.deploy.test_operators import VALIDATORS, kind, refusals
from tests.support.paths import ROOT

K8S = ROOT / "k8s"
PROTOCOLS = {"v1": "kserve-v1", "v2": "open-inference"}
"""The dialects of KServe's protocol versions."""
OVERLAYS = ("cpu", "gpu")
KUBERNETES = "1.37"
EXIT_S = 7.0  # from the README: a server exits within this time after its last request


def kustomize_version() -> int:
    """Returns the major version of the Kustomize in kubectl, or 0 if it is unknown."""
    if (kubectl := shutil.which("kubectl")) is None:
        return 0
    done = subprocess.run([kubectl, "version", "--client", "--output", "json"], capture_output=True, text=True)
    try:
        return int(json.loads(done.stdout)["kustomizeVersion"][1:].split(".")[0])
    except (ValueError, KeyError):
        return 0


pytestmark = pytest.mark.skipif(kustomize_version() < 5, reason="needs kubectl with Kustomize 5")


@cache
def render(directory: Path) -> list[dict[str, Any]]:
    command = ["kubectl", "kustomize", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "deprecated" not in done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def manifests(overlay) -> list[dict[str, Any]]:
    return render(K8S / "overlays" / overlay)


def one(manifests: list[dict[str, Any]], kind: str, name: str = "swiftlet") -> Any:
    (found,) = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod(manifests: list[dict[str, Any]]) -> Any:
    return one(manifests, "Deployment")["spec"]["template"]["spec"]


def container(manifests: list[dict[str, Any]]) -> Any:
    (found,) = pod(manifests)["containers"]
    return found


def settings(manifests: list[dict[str, Any]]) -> Settings:
    """Returns the settings that the server reads from its environment."""
    given = {each["name"].removeprefix("SWIFTLET_").lower(): each["value"] for each in container(manifests)["env"]}
    return Settings(**given)


def test_manifests_are_valid(manifests):
    for manifest in manifests:
        if kind(manifest) in VALIDATORS:
            assert refusals(manifest) == []
        else:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_manifests_are_in_a_namespace_with_the_restricted_standard(manifests):
    namespace = one(manifests, "Namespace")

    for mode in ("enforce", "audit", "warn"):
        assert namespace["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"] == "restricted"
    assert {each["metadata"]["namespace"] for each in manifests if each is not namespace} == {"swiftlet"}


def test_pods_are_restricted_and_read_only(manifests):
    spec, context = pod(manifests), container(manifests)["securityContext"]

    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    assert all(volume.keys() & {"emptyDir", "persistentVolumeClaim"} for volume in spec.get("volumes", []))
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec.get("volumes", []) if "emptyDir" in volume)


def test_pods_run_as_the_user_of_the_image(manifests):
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    context = pod(manifests)["securityContext"]

    assert (context["runAsUser"], context["runAsGroup"]) == tuple(map(int, user))


def test_pods_have_no_token(manifests):
    assert pod(manifests)["automountServiceAccountToken"] is False
    assert one(manifests, "ServiceAccount")["automountServiceAccountToken"] is False
    assert pod(manifests)["serviceAccountName"] == one(manifests, "ServiceAccount")["metadata"]["name"]


def test_pods_run_the_image_of_this_version(manifests, overlay):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert container(manifests)["image"] == f"swiftlet:{version}-{overlay}"


def test_grace_period_covers_the_shutdown(manifests):
    configured_s = settings(manifests).drain_s + settings(manifests).shutdown_timeout_s
    hook = container(manifests).get("lifecycle", {}).get("preStop", {})
    shutdown_s = hook.get("sleep", {}).get("seconds", 0) + configured_s + EXIT_S

    assert shutdown_s <= pod(manifests)["terminationGracePeriodSeconds"] <= shutdown_s + 5
    assert port.CANCEL_S + 2 * port.POLL_S + server.CLOSE_S + port.CANCEL_S < EXIT_S


def test_drain_time_covers_the_readiness_probe(manifests):
    probe = container(manifests)["readinessProbe"]

    assert settings(manifests).drain_s > probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]


def test_probes_use_the_admin_port(manifests):
    probes = {name: container(manifests)[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}

    assert {name: probe["httpGet"] for name, probe in probes.items()} == {
        "startup": {"path": "/health/ready", "port": "admin"},
        "readiness": {"path": "/health/ready", "port": "admin"},
        "liveness": {"path": "/health/live", "port": "admin"},
    }
    watchdog_s = 5.0  # the watchdog ends a process whose event loop hangs, before the kubelet does
    assert probes["liveness"]["periodSeconds"] * probes["liveness"]["failureThreshold"] > 2 * watchdog_s


def test_pods_have_the_ports_of_the_image(manifests):
    image = dict(re.findall(r"SWIFTLET_(\w*PORT)=(\d+)", (ROOT / "docker/Dockerfile").read_text()))
    ports = {port["name"]: port["containerPort"] for port in container(manifests)["ports"]}

    assert ports == {"http": Settings.model_fields["port"].default, "admin": int(image["ADMIN_PORT"])}


def test_service_exposes_the_public_port_only(manifests):
    service = one(manifests, "Service")["spec"]

    assert [port["targetPort"] for port in service["ports"]] == ["http"]
    assert service["selector"] == one(manifests, "Deployment")["spec"]["selector"]["matchLabels"]


def test_network_policies_allow_clients_and_prometheus_only(manifests):
    policies = {each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == "NetworkPolicy"}

    assert policies.pop("default-deny") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    allowed = {}
    for name, policy in policies.items():
        assert policy["podSelector"] == one(manifests, "Deployment")["spec"]["selector"]
        assert policy["policyTypes"] == ["Ingress"]
        for rule in policy["ingress"]:
            allowed[name] = rule["from"], [port["port"] for port in rule["ports"]]
    assert allowed == {
        "clients": ([{"namespaceSelector": {"matchLabels": {"swiftlet-clients": "true"}}}], ["http"]),
        "metrics": (
            [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
                    "podSelector": {
                        "matchExpressions": [
                            {"key": "app.kubernetes.io/name", "operator": "In", "values": ["prometheus"]}
                        ]
                    },
                }
            ],
            ["admin"],
        ),
    }


def test_service_monitor_selects_every_pod_once(manifests):
    monitor = one(manifests, "ServiceMonitor")["spec"]
    services = [each for each in manifests if each["kind"] == "Service"]
    found = [
        each for each in services if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]

    assert [each["metadata"]["name"] for each in found] == ["swiftlet-admin"]
    assert [each["port"] for each in monitor["endpoints"]] == [port["name"] for port in found[0]["spec"]["ports"]]
    assert found[0]["spec"]["selector"] == one(manifests, "Deployment")["spec"]["selector"]["matchLabels"]
    assert found[0]["metadata"]["labels"][monitor["jobLabel"]] == "swiftlet"


def test_monitor_labels_reach_the_resources_of_the_prometheus_operator_only(tmp_path, overlay):
    plain = render(K8S / "overlays" / overlay)
    labelled = render(copy_with(tmp_path, overlay, "monitor-labels"))

    assert [kind(each) for each in labelled] == [kind(each) for each in plain]
    for before, after in zip(plain, labelled, strict=True):
        expected = {"release": "kube-prometheus-stack"} if kind(after).startswith("monitoring.coreos.com/") else {}
        assert after["metadata"].get("labels", {}) == before["metadata"].get("labels", {}) | expected
    selector = {"app.kubernetes.io/name": "swiftlet", "app.kubernetes.io/component": "admin"}
    assert one(labelled, "ServiceMonitor")["spec"]["selector"]["matchLabels"] == selector


def test_traces_open_egress_to_the_collector_and_the_dns_only(tmp_path, overlay):
    plain = render(K8S / "overlays" / overlay)
    traced = render(copy_with(tmp_path, overlay, "traces"))
    policy = one(traced, "NetworkPolicy", "traces")
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    collector, dns = policy["spec"]["egress"]
    endpoint = urlsplit(settings(traced).traces_endpoint)

    assert len(traced) == len(plain) + 1
    assert policy["metadata"]["namespace"] == "swiftlet"
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert policy["spec"]["podSelector"] == one(traced, "Deployment")["spec"]["selector"]
    assert (endpoint.scheme, endpoint.path) == ("http", "/v1/traces")
    assert [each["port"] for each in collector["ports"]] == [endpoint.port] == [4318]
    (to,) = collector["to"]
    namespace = to["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert to["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "opentelemetry-collector"}
    assert str(endpoint.hostname).split(".")[1:] == [namespace, "svc"]
    assert {(each["port"], each["protocol"]) for each in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert dns["to"][0].keys() == {"namespaceSelector", "podSelector"}
    assert settings(traced).drain_s == settings(plain).drain_s  # the settings of the base remain


def copy_with(directory: Path, overlay: str, component: str) -> Path:
    """Copies the manifests, adds a component to an overlay of the copy, and returns the overlay's directory."""
    shutil.copytree(K8S, directory / "k8s")
    path = directory / "k8s/overlays" / overlay / "kustomization.yaml"
    kustomization = path.read_text("utf-8")
    assert f"  # - ../../{component}\n" in kustomization
    path.write_text(kustomization.replace(f"  # - ../../{component}\n", f"  - ../../{component}\n"))
    return path.parent


RULES = ROOT / "docker/prometheus/rules.yml"


def test_prometheus_rule_equals_the_rules_of_compose(manifests):
    """If this fails, run `k8s/rules`."""
    assert one(manifests, "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text("utf-8"))


def test_replicas_are_spread_and_replaced_one_at_a_time(manifests, overlay):
    deployment = one(manifests, "Deployment")["spec"]
    spread = pod(manifests)["topologySpreadConstraints"]

    assert {each["topologyKey"] for each in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert all(each["labelSelector"] == deployment["selector"] for each in spread)
    gpu = overlay == "gpu"  # a surge pod would wait for a spare GPU
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": int(gpu), "maxSurge": int(not gpu)}
    disruption = one(manifests, "PodDisruptionBudget")["spec"]
    assert disruption["maxUnavailable"] == 1
    assert disruption["selector"] == deployment["selector"]
    scalers = [each["spec"]["minReplicas"] for each in manifests if each["kind"] == "HorizontalPodAutoscaler"]
    assert len(scalers) == int(not gpu)
    assert ("replicas" in deployment) == gpu  # applying it would undo the decision of an autoscaler
    assert deployment.get("replicas", *scalers) > disruption["maxUnavailable"]


def test_own_models_come_from_a_read_only_volume(tmp_path):
    overlay = K8S / "own-models"
    kustomization = {"resources": ["base"], "components": ["own-models"]}
    shutil.copytree(K8S / "base", tmp_path / "base")
    shutil.copytree(overlay, tmp_path / "own-models")
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    manifests = render(tmp_path)
    (mount,) = container(manifests)["volumeMounts"]
    (volume,) = pod(manifests)["volumes"]

    assert mount["readOnly"]
    assert volume["persistentVolumeClaim"]["readOnly"]
    assert all(Path(model).is_relative_to(mount["mountPath"]) for model in settings(manifests).models)
    assert settings(manifests).drain_s > 0  # the settings of the base remain


def test_kserve_runs_the_same_container():
    base, kserve = render(K8S / "overlays/cpu"), render(K8S / "kserve")
    (runtime,) = one(kserve, "ServingRuntime")["spec"]["containers"]
    model, ours = one(kserve, "InferenceService", "mine")["spec"]["predictor"], container(base)

    assert runtime["image"] == ours["image"]
    assert runtime["securityContext"].items() >= ours["securityContext"].items()
    assert runtime["securityContext"]["runAsNonRoot"]
    assert runtime["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {name: runtime["resources"]["limits"][name] for name in ("cpu", "memory")}.items() <= (
        ours["resources"]["limits"].items()
    )
    numbers = {each["name"]: each["containerPort"] for each in ours["ports"]}
    for name in (
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
    ):
        # A probe of a ServingRuntime cannot refer to a port by name.
        probe = {**ours[name], "httpGet": {**ours[name]["httpGet"], "port": numbers["admin"]}}
        assert runtime[name] == probe
    assert [port["containerPort"] for port in runtime["ports"]] == [numbers["http"]]
    assert model["model"]["runtime"] == one(kserve, "ServingRuntime")["metadata"]["name"]
    assert one(kserve, "ServingRuntime")["spec"]["protocolVersions"] == [*PROTOCOLS, "grpc-v2"]
    assert set(PROTOCOLS.values()) <= set(dialects.names())
    formats = {each["name"] for each in one(kserve, "ServingRuntime")["spec"]["supportedModelFormats"]}
    assert model["model"]["modelFormat"]["name"] in formats
    variables = {each["name"]: each["value"] for each in runtime["env"]}
    assert variables["SWIFTLET_MODELS"] == "/mnt/models"  # KServe mounts storageUri there
    assert f"EXPOSE 8000 {variables['SWIFTLET_GRPC_PORT']} " in (ROOT / "docker/Dockerfile").read_text()
    shutdown_s = float(variables["SWIFTLET_DRAIN_S"]) + Settings.model_fields["shutdown_timeout_s"].default + EXIT_S
    assert model["terminationGracePeriodSeconds"] >= shutdown_s


def test_kserve_has_metrics_and_an_image_to_replace(tmp_path):
    shutil.copytree(K8S, tmp_path / "k8s")
    path = tmp_path / "k8s/kserve/kustomization.yaml"
    kustomization = path.read_text("utf-8").replace("newName: swiftlet ", "newName: registry.example/swiftlet ")
    path.write_text(kustomization.replace("# - ../monitor-labels", "- ../monitor-labels"))
    kserve = render(path.parent)
    (runtime,) = one(kserve, "ServingRuntime")["spec"]["containers"]
    monitor = one(kserve, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert runtime["image"].startswith("registry.example/swiftlet:")
    assert refusals(monitor) == []
    assert monitor["metadata"]["labels"] == {"release": "kube-prometheus-stack"}
    model = one(kserve, "InferenceService", "mine")["metadata"]["name"]
    assert monitor["spec"]["selector"]["matchLabels"] == {"serving.kserve.io/inferenceservice": model}
    assert endpoint["port"] in {port["name"] for port in runtime["ports"]}
    assert endpoint["path"] == "/metrics"
    admin = runtime["readinessProbe"]["httpGet"]["port"]
    assert {each["targetLabel"]: each["replacement"] for each in endpoint["relabelings"]} == {
        "__address__": f"$1:{admin}",
        "job": "swiftlet",
    }


# The capacity model of k8s/README.md

README = (K8S / "README.md").read_text("utf-8")
OBJECTIVE_S = 0.3
MAX_UTILISATION = 0.7


def rows(first: str) -> list[list[str]]:
    """Returns the rows of the README's table whose header begins with `first`."""
    (found,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]


def p99_s(service_s: float, utilisation: float) -> float:
    """Returns the p99 latency on one core with a constant service time, at a utilisation."""
    return service_s * (1 + math.log(100 * utilisation) / (2 * (1 - utilisation)))


def highest_utilisation(service_s: float) -> float:
    """Returns the highest utilisation at which the objective holds; 0 if there is none."""
    return max(
        (
            share / 100
            for share in range(5, int(100 * MAX_UTILISATION) + 1)
            if p99_s(service_s, share / 100) <= OBJECTIVE_S
        ),
        default=0,
    )


def test_readme_replica_rates_follow_from_the_measured_rates():
    cores = int(container(render(K8S / "overlays/cpu"))["resources"]["limits"]["cpu"])
    lengths = [int(row[0]) for row in rows("tokens")]

    for column in (1, 2):
        for row in rows("tokens"):
            rate = float(row[column])
            assert float(row[column + 2]) == pytest.approx(cores * rate * highest_utilisation(1 / rate), abs=0.5)
    assert lengths == sorted(lengths)


def test_readme_names_date_and_commit_of_the_measurement():
    (setting,) = re.findall(r"^(Measured with .*?)\n\n\| tokens", README, re.MULTILINE | re.DOTALL)

    assert re.search(r"on \d{4}-\d{2}-\d{2}, at commit [0-9a-f]{7} \(version [\d.]+, Python [\d.]+\)", setting)


def test_resources_follow_from_the_measured_memory():
    limits = container(render(K8S / "overlays/cpu"))["resources"]["limits"]
    *_, together = rows("process")
    measured = float(together[2].split()[0])  # MiB, of `onnx_cpu`

    assert 1.5 * measured <= int(limits["memory"].removesuffix("Mi")) <= 2.5 * measured
    assert limits == container(render(K8S / "overlays/cpu"))["resources"]["requests"]
    assert limits["cpu"].isdigit()  # the server ignores fractions of a core
