"""The Helm chart: valid manifests that equal those of Kustomize, and refusals of wrong values."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from swiftlet_serve.settings import Settings, check_variables
from tests.deploy.test_k8s import EXIT_S, K8S, KUBERNETES, container, copy_with, kustomize_version, one, pod
from tests.deploy.test_k8s import render as kustomize
from tests.deploy.test_operators import VALIDATORS, kind, refusals
from tests.support.paths import ROOT
from tests.support.tiers import first

CHART = K8S / "helm/swiftlet"
HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
HTTP_ROUTE = "gateway.networking.k8s.io/v1/HTTPRoute"  # no package has its schema: a test compares it field by field

pytestmark = pytest.mark.skipif(HELM is None, reason="needs helm: see `make helm`")
needs_kustomize = pytest.mark.skipif(kustomize_version() < 5, reason="needs kubectl with Kustomize 5")

Values = dict[str, Any]


def helm(*arguments: str, values: Values | None = None) -> subprocess.CompletedProcess[str]:
    given = "" if values is None else json.dumps(values)  # JSON is YAML
    command = [str(HELM), *arguments, *(["--values", "-"] if values is not None else [])]
    return subprocess.run(command, input=given, capture_output=True, text=True)


def template(values: Values, release: str = "swiftlet", chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    options = ["--namespace", "swiftlet", "--kube-version", "1.33.0"]
    return helm("template", release, str(chart), *options, values=values)


def render(values: Values, release: str = "swiftlet", chart: Path = CHART) -> list[dict[str, Any]]:
    done = template(values, release, chart)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def settings(manifests: list[dict[str, Any]]) -> Settings:
    """Returns the settings that the server reads from its environment. Unknown ones are refused, as by the server."""
    given = {
        each["name"]: each["value"] for each in container(manifests)["env"] if each["name"].startswith("SWIFTLET_")
    }
    check_variables(given)
    return Settings(**{name.removeprefix("SWIFTLET_").lower(): value for name, value in given.items()})


MONITORED: Values = {
    "monitoring": {
        "serviceMonitor": True,
        "prometheusRule": True,
        "dashboard": True,
        "labels": {"release": "kube-prometheus-stack"},
    }
}
GPU: Values = {"gpu": {"enabled": True}}
KEDA: Values = {"autoscaling": {"type": "keda"}}
TRACES: Values = {"traces": {"endpoint": "http://otel-collector.monitoring.svc:4318/v1/traces"}}
OWN_MODELS: Values = {"models": {"existingClaim": "swiftlet-models", "serve": ["/models/mine"]}}
INIT: Values = {
    "models": {
        "serve": ["albert-sst2", "/models/mine"],
        "init": {
            "image": "registry.example/fetch:1",
            "command": ["fetch"],
            "args": ["s3://bucket/mine", "/models/mine"],
            "env": [{"name": "REGION", "value": "eu"}],
            "envFrom": [{"secretRef": {"name": "bucket"}}],
        },
    },
    "networkPolicy": {"extraEgress": [{"ports": [{"port": 443}]}]},
}
SECRETS: Values = {
    "apiKeys": {"lines": ["alice sha256:aa", "bob sha256:bb"]},
    "tls": {"certificate": "CERTIFICATE", "privateKey": "KEY"},
}
EXISTING: Values = {"apiKeys": {"existingSecret": "keys", "secretKey": "file"}, "tls": {"existingSecret": "tls"}}
INGRESS: Values = {
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["a.example"], "tls": [{"secretName": "a"}]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["a.example"]},
}
PLACED: Values = {
    "image": {"repository": "registry.example/swiftlet", "digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {
        "drain_s": 2.5,
        "shutdown_timeout_s": 30,
        "max_queued_tokens": 13_107_200,
        "client_rate_limit": 1.5,
        "client_token_rate_limit": 5000,
        "access_log": True,
        "log_format": "json",
        "cors_origins": ["https://a.example", "https://b.example"],
    },
    "extraEnv": [{"name": "OTEL_SERVICE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "grpc": {"enabled": True},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "search"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "podDisruptionBudget": {"maxUnavailable": "25%"},
}
BARE: Values = {
    "autoscaling": {"type": "none"},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "serviceAccount": {"create": False},
    "topologyKeys": [],
}
CASES = {
    "defaults": {},
    "monitored": MONITORED,
    "gpu": GPU,
    "gpu-keda": GPU | KEDA,
    "keda": KEDA,
    "traces": TRACES,
    "own-models": OWN_MODELS,
    "init": INIT,
    "secrets": SECRETS,
    "existing": EXISTING,
    "ingress": INGRESS,
    "placed": PLACED,
    "bare": BARE,
}


@pytest.mark.parametrize("release", first(["swiftlet", "other"], "swiftlet"))
@pytest.mark.parametrize("case", CASES)
def test_manifests_are_valid(case, release):
    manifests = render(CASES[case], release)

    for manifest in manifests:
        if kind(manifest) in VALIDATORS:
            assert refusals(manifest) == []
        elif kind(manifest) != HTTP_ROUTE:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    named = [(kind(each), each["metadata"]["name"]) for each in manifests]
    assert len(set(named)) == len(named)
    assert all(each["metadata"]["namespace"] == "swiftlet" for each in manifests)
    prefix = "swiftlet" if release == "swiftlet" else "other-swiftlet"
    assert all(name.startswith(prefix) for _, name in named)


@pytest.mark.parametrize("case", CASES)
def test_server_accepts_the_settings(case):
    given = settings(render(CASES[case]))

    assert given.drain_s > 0
    assert given.admin_port is None  # the image sets the ports


@pytest.mark.parametrize("case", CASES)
def test_pods_are_restricted(case):
    spec = pod(render(CASES[case]))

    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for each in [*spec["containers"], *spec.get("initContainers", [])]:
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    kinds = {"emptyDir", "persistentVolumeClaim", "secret"}
    assert all(volume.keys() & kinds for volume in spec.get("volumes", []))
    names = {volume["name"] for volume in spec.get("volumes", [])}
    assert names == {mount["name"] for mount in spec["containers"][0].get("volumeMounts", [])}


# Equal to Kustomize


def comparable(manifests: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Returns the manifests by kind and name, without the labels that only a chart has and without defaults."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            ours = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"}
            kept = {key: plain(each) for key, each in value.items() if key not in {*ours, "helm.sh/chart"}}
            return {key: each for key, each in kept.items() if (key, each) not in DEFAULTS}
        return [plain(each) for each in value] if isinstance(value, list) else value

    found = {}
    for each in manifests:
        name = each["metadata"]["name"]
        if each["kind"] == "NetworkPolicy":  # a release has its name in front, because others may be in the namespace
            name = name.removeprefix("swiftlet-")
        found[each["kind"], name] = {**plain(each), "metadata": {**plain(each["metadata"]), "name": name}}
    return found


DEFAULTS = [("type", "RollingUpdate"), ("type", "ClusterIP")]  # of the API
OWN = ("NetworkPolicy", "default-deny")  # the base owns its namespace, a chart only its pods


@needs_kustomize
@pytest.mark.parametrize(
    ("overlay", "component", "values"),
    [
        ("cpu", None, {}),
        ("cpu", "monitor-labels", MONITORED),
        ("cpu", "traces", TRACES),
        pytest.param("cpu", "own-models", OWN_MODELS, marks=pytest.mark.exhaustive),
        pytest.param("gpu", None, GPU, marks=pytest.mark.exhaustive),
    ],
    ids=["cpu", "monitored", "traces", "own-models", "gpu"],
)
def test_chart_equals_kustomize(tmp_path, overlay, component, values):
    directory = K8S / "overlays" / overlay if component is None else copy_with(tmp_path, overlay, component)
    expected, found = (
        comparable(kustomize(directory)),
        comparable(render(values | {"monitoring": MONITORED["monitoring"]})),
    )
    if component != "monitor-labels":
        for each in ("ServiceMonitor", "PrometheusRule"):
            assert found[each, "swiftlet"]["metadata"]["labels"].pop("release") == "kube-prometheus-stack"

    assert expected.keys() - found.keys() == {("Namespace", "swiftlet")}  # helm --create-namespace
    assert found.keys() - expected.keys() == {("ConfigMap", "swiftlet-dashboard")}
    for name in expected.keys() & found.keys() - {OWN}:
        for manifest in (expected[name], found[name]):
            sort_variables(manifest)
            if name[0] in {"ServiceMonitor", "PrometheusRule"}:  # Kustomize labels what belongs to the base
                manifest["metadata"].setdefault("labels", {}).pop("app.kubernetes.io/name", None)
            else:
                manifest["metadata"].setdefault("labels", {}).setdefault("app.kubernetes.io/name", "swiftlet")
        assert found[name] == expected[name], name
    assert found[OWN]["spec"]["policyTypes"] == expected[OWN]["spec"]["policyTypes"]


def sort_variables(manifest: Any) -> None:
    """Sorts a Deployment's environment variables, whose order has no meaning."""
    if manifest["kind"] == "Deployment":
        container([manifest])["env"].sort(key=lambda each: each["name"])


@needs_kustomize
def test_keda_scales_as_the_component():
    (scaled,) = [each for each in render(KEDA) if each["kind"] == "ScaledObject"]
    expected = yaml.safe_load((K8S / "keda/scaledobject.yaml").read_text("utf-8"))
    for trigger in expected["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        assert 'namespace="swiftlet"' in query
        trigger["metadata"]["query"] = query.replace(
            'namespace="swiftlet"', 'namespace="swiftlet",service="swiftlet-admin"'
        )

    assert scaled["spec"] == expected["spec"]
    assert not [each for each in render(KEDA) if each["kind"] == "HorizontalPodAutoscaler"]


def test_rules_and_dashboard_are_the_files_of_compose():
    manifests = render(MONITORED)
    (rule,) = [each for each in manifests if each["kind"] == "PrometheusRule"]
    dashboard = one(manifests, "ConfigMap", "swiftlet-dashboard")["data"]["swiftlet.json"]

    assert rule["spec"] == yaml.safe_load((ROOT / "docker/prometheus/rules.yml").read_text("utf-8"))
    assert json.loads(dashboard) == json.loads((ROOT / "docker/grafana/dashboard.json").read_text("utf-8"))
    assert all(path.is_symlink() and path.resolve().is_relative_to(ROOT) for path in (CHART / "files").iterdir())


def test_package_has_the_files_and_the_version(tmp_path):
    done = helm("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    (package,) = tmp_path.iterdir()

    assert package.name == f"swiftlet-{version}.tgz"
    with tarfile.open(package) as files:
        assert all(each.isreg() for each in files.getmembers())
        chart = yaml.safe_load(files.extractfile("swiftlet/Chart.yaml") or b"")
    assert chart["appVersion"] == version
    assert render(MONITORED, chart=package) == render(MONITORED)


def test_lint_finds_no_mistakes():
    done = helm("lint", str(CHART), "--strict")

    assert done.returncode == 0, done.stdout + done.stderr


# Values


def test_settings_reach_the_server_unchanged():
    manifests = render(PLACED)
    given = settings(manifests)

    for name, value in PLACED["settings"].items():
        assert getattr(given, name) == (tuple(value) if isinstance(value, list) else value)
    grace_s = pod(manifests)["terminationGracePeriodSeconds"]
    assert given.drain_s + given.shutdown_timeout_s + EXIT_S <= grace_s <= 2.5 + 30 + EXIT_S + 5
    assert container(manifests)["env"][-1] == PLACED["extraEnv"][0]
    assert container(manifests)["image"] == f"registry.example/swiftlet@sha256:{'0' * 64}"


def test_grpc_has_its_port_everywhere():
    manifests = render({"grpc": {"enabled": True, "port": 8010}})
    ports = {each["name"]: each for each in one(manifests, "Service")["spec"]["ports"]}

    assert settings(manifests).grpc_port == 8010
    assert {"name": "grpc", "containerPort": 8010} in container(manifests)["ports"]
    assert (ports["grpc"]["port"], ports["grpc"]["targetPort"]) == (8010, "grpc")
    (rule,) = one(manifests, "NetworkPolicy", "swiftlet-clients")["spec"]["ingress"]
    assert rule["ports"] == [{"port": "http"}, {"port": "grpc"}]


@pytest.mark.parametrize(
    ("values", "keys", "tls"), [(SECRETS, "swiftlet-keys", "swiftlet-tls"), (EXISTING, "keys", "tls")]
)
def test_secrets_are_mounted_where_the_settings_point(values, keys, tls):
    manifests = render(values)
    spec, given = pod(manifests), settings(manifests)
    volumes = {each["name"]: each["secret"] for each in spec["volumes"]}
    mounts = {each["name"]: Path(each["mountPath"]) for each in container(manifests)["volumeMounts"]}

    assert {name: each["secretName"] for name, each in volumes.items()} == {"keys": keys, "tls": tls}
    assert all(each["defaultMode"] == 0o440 for each in volumes.values())
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]
    assert given.api_keys_file == mounts["keys"] / values["apiKeys"].get("secretKey", "keys")
    assert (given.tls_cert, given.tls_key) == (mounts["tls"] / "tls.crt", mounts["tls"] / "tls.key")
    secrets = {each["metadata"]["name"]: each for each in manifests if each["kind"] == "Secret"}
    assert secrets.keys() == ({keys, tls} if values is SECRETS else set())
    if secrets:
        assert base64.b64decode(secrets[keys]["data"]["keys"]) == b"alice sha256:aa\nbob sha256:bb\n"
        assert secrets[tls]["type"] == "kubernetes.io/tls"
        assert base64.b64decode(secrets[tls]["data"]["tls.key"]) == b"KEY"


def test_changed_keys_replace_the_pods():
    def annotations(*lines: str) -> Any:
        return one(render({"apiKeys": {"lines": lines}}), "Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations("a b") == annotations("a b") != annotations("a c")


def test_init_container_writes_models_that_the_server_reads():
    manifests = render(INIT)
    (init,) = pod(manifests)["initContainers"]
    (mount,) = container(manifests)["volumeMounts"]
    (volume,) = pod(manifests)["volumes"]

    assert init["volumeMounts"] == [{"name": "models", "mountPath": mount["mountPath"]}]
    assert mount["readOnly"]
    assert volume["emptyDir"]["sizeLimit"]
    assert settings(manifests).models == ("albert-sst2", "/models/mine")
    assert one(manifests, "NetworkPolicy", "swiftlet-extra")["spec"]["egress"] == [{"ports": [{"port": 443}]}]


@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://otel:4318/v1/traces", 4318), ("https://otel.example/v1/traces", 443)]
)
def test_traces_open_egress_to_the_port_of_the_endpoint(endpoint, port):
    manifests = render({"traces": {"endpoint": endpoint}})

    assert settings(manifests).traces_endpoint == endpoint
    collector, _ = one(manifests, "NetworkPolicy", "swiftlet-traces")["spec"]["egress"]
    assert collector["ports"] == [{"port": port}]


def test_routes_lead_to_the_public_port():
    manifests = render(INGRESS)
    service = one(manifests, "Service")["spec"]
    (rule,) = one(manifests, "Ingress")["spec"]["rules"]
    (path,) = rule["http"]["paths"]

    assert rule["host"] == "a.example"
    assert path["backend"]["service"] == {"name": "swiftlet", "port": {"name": service["ports"][0]["name"]}}
    assert one(manifests, "HTTPRoute")["spec"] == {
        "parentRefs": [{"name": "gateway"}],
        "hostnames": ["a.example"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [{"name": "swiftlet", "port": service["ports"][0]["port"]}],
            }
        ],
    }


def test_releases_in_one_namespace_are_apart():
    first, second = render(MONITORED, "a"), render(MONITORED, "b")
    names = [{(kind(each), each["metadata"]["name"]) for each in release} for release in (first, second)]
    selectors = [one(release, "Deployment", f"{name}-swiftlet")["spec"]["selector"]["matchLabels"]
                 for release, name in ((first, "a"), (second, "b"))]  # fmt: skip

    assert not names[0] & names[1]
    assert selectors[0] != selectors[1]
    for release, name in ((first, "a"), (second, "b")):
        job = one(release, "ServiceMonitor", f"{name}-swiftlet")["spec"]["jobLabel"]
        admin = one(release, "Service", f"{name}-swiftlet-admin")["metadata"]["labels"]
        assert admin[job] == "swiftlet"  # the rules select this job


# Refusals

WRONG: list[tuple[Values, str]] = [
    ({"imag": {}}, "imag"),
    ({"image": {"repo": "a"}}, "repo"),
    ({"image": {"tag": 1.0}}, "image.tag"),
    ({"image": {"digest": "latest"}}, "image.digest"),
    ({"replicas": "2"}, "replicas"),
    ({"replicas": 0}, "replicas"),
    ({"settings": {"drain_s": "10"}}, "drain_s"),
    ({"settings": {"SWIFTLET_ENGINE": "torch"}}, "SWIFTLET_ENGINE"),
    ({"settings": {"engine": {}}}, "engine"),
    ({"settings": {"port": 80}}, "Remove settings.port"),
    ({"settings": {"grpc_port": 8001}}, "Use the value grpc"),
    ({"apiKeys": {"lines": "alice"}}, "lines"),
    ({"apiKeys": {"lines": ["a"], "existingSecret": "b"}}, "either apiKeys.existingSecret or"),
    ({"tls": {"certificate": "a"}}, "both tls.certificate and tls.privateKey"),
    ({"tls": {"certificate": "a", "privateKey": "b", "existingSecret": "c"}}, "either tls.existingSecret or"),
    ({"grpc": {"port": 70000}}, "grpc.port"),
    ({"models": {"serve": "mine"}}, "models.serve"),
    ({"models": {"existingClaim": "a", "init": {"image": "b"}}}, "either models.existingClaim or"),
    ({"resources": {"limit": {}}}, "limit"),
    ({"resources": {"limits": {"cpu": "two"}}}, "resources.limits.cpu"),
    ({"gpu": {"enabled": "yes"}}, "gpu.enabled"),
    ({"gpu": {"enabled": True}, "autoscaling": {"type": "cpu"}}, "keda or none"),
    ({"autoscaling": {"type": "vpa"}}, "autoscaling.type"),
    ({"autoscaling": {"cpuUtilization": 0.7}}, "cpuUtilization"),
    ({"service": {"type": "ExternalName"}}, "service.type"),
    ({"ingress": {"host": "a"}}, "host"),
    ({"ingress": {"path": "a"}}, "ingress.path"),
    ({"httpRoute": {"enabled": True}}, "parentRefs"),
    ({"monitoring": {"interval": 10}}, "monitoring.interval"),
    ({"monitoring": {"labels": {"release": 1}}}, "release"),
    ({"traces": {"endpoint": "otel:4318"}}, "traces.endpoint"),
    ({"networkPolicy": {"clients": {}}}, "clients"),
    ({"probes": {"readiness": {"path": "/"}}}, "path"),
    ({"extraEnv": [{"value": "a"}]}, "name"),
]


@pytest.mark.parametrize(("values", "expected"), WRONG, ids=[json.dumps(values) for values, _ in WRONG])
def test_wrong_values_are_refused(values, expected):
    done = template(values)

    assert done.returncode != 0
    assert not done.stdout
    assert expected in done.stderr


def test_schema_describes_every_value():
    """A value that the schema lacks would be refused, and one that `values.yaml` lacks would have no default."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))

    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() - {"global"} == values.keys()
    for name, each in schema["properties"].items():
        if each.get("additionalProperties") is False:
            assert each["properties"].keys() == values[name].keys()


def test_chart_sets_no_setting_that_the_server_lacks():
    everything = SECRETS | TRACES | OWN_MODELS | {"grpc": {"enabled": True}}
    names = {each["name"] for each in container(render(everything))["env"]}

    assert {"SWIFTLET_MODELS", "SWIFTLET_TLS_CERT", "SWIFTLET_API_KEYS_FILE", "SWIFTLET_GRPC_PORT"} < names
    check_variables(names)


# Notes


def notes(directory: Path, values: Values) -> str:
    """Returns the notes of a release. `helm template` leaves them out, so a manifest of a copy includes them."""
    chart = directory / "chart"
    shutil.copytree(CHART, chart)
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes"}, "data": {"notes": "NOTES"}}
    path = '(print $.Template.BasePath "/NOTES.txt")'
    text = json.dumps(manifest).replace('"NOTES"', "{{ include " + path + " . | toJson }}")
    (chart / "templates/notes.yaml").write_text(text)
    return str(one(render(values, chart=chart), "ConfigMap", "notes")["data"]["notes"])


def test_notes_warn_of_an_open_server(tmp_path):
    text = notes(tmp_path, {})

    assert "WARNING: requests need no key" in text
    assert "kubectl label namespace CLIENTS swiftlet-clients=true" in text
    assert "curl http://localhost:8000/models" in text
    assert "rollout restart" not in text


def test_notes_of_a_closed_server_tell_how_to_renew_keys(tmp_path):
    text = notes(tmp_path, EXISTING | MONITORED)

    assert "WARNING" not in text
    assert "curl https://localhost:8000/models" in text
    assert "rollout restart deployment/swiftlet" in text


def test_notes_warn_if_keda_has_no_metrics(tmp_path):
    assert "ServiceMonitor, which is off" in notes(tmp_path, KEDA)
