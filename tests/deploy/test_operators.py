"""The manifests for operators meet their schemas, which refuse unknown fields and types."""

from __future__ import annotations

import copy
import json
from typing import Any

import kubernetes_validate.utils
import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.support.paths import ROOT, TESTS

K8S = ROOT / "k8s"
SCHEMAS = [json.loads(path.read_text("utf-8")) for path in sorted((TESTS / "schemas").glob("*.json"))]
KUBERNETES = "kubernetes-json-schema/v1.37.0-local-strict/_definitions.json"  # of kubernetes-validate
CORE = Resource.from_contents(kubernetes_validate.utils.schema_contents(KUBERNETES, "1.37"))
VALIDATORS = {
    kind: Draft202012Validator({"$ref": f"#/$defs/{kind.replace('/', '~1')}", **schema}, registry=CORE @ Registry())
    for schema in SCHEMAS
    for kind in schema["$defs"]
    if "/" in kind
}


def kind(manifest: dict[str, Any]) -> str:
    return f"{manifest['apiVersion']}/{manifest['kind']}"


def refusals(manifest: dict[str, Any]) -> list[str]:
    """Returns the complaints of an API server with strict validation."""
    return [error.message for error in VALIDATORS[kind(manifest)].iter_errors(manifest)]


MANIFESTS = {
    manifest["kind"]: manifest
    for path in sorted([*K8S.glob("monitoring/*.yaml"), *K8S.glob("keda/*.yaml"), *K8S.glob("kserve/**/*.yaml")])
    for manifest in yaml.safe_load_all(path.read_text("utf-8"))
    if "kustomize" not in manifest["apiVersion"]
}


def test_schemas_cover_every_kind():
    assert {kind(manifest) for manifest in MANIFESTS.values()} == VALIDATORS.keys()


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_meets_its_schema(name):
    assert refusals(MANIFESTS[name]) == []


INVALID = [
    ("ServiceMonitor", "spec.selector", None, "'selector' is a required property"),
    ("ServiceMonitor", "spec.jobLable", "app", "'jobLable' was unexpected"),
    ("ServiceMonitor", "spec.endpoints.0.interval", 10, "10 is not of type 'string'"),
    ("ServiceMonitor", "spec.endpoints.0.interval", "10 s", "'10 s' does not match"),
    ("PodMonitor", "spec.selector", None, "'selector' is a required property"),
    ("PodMonitor", "spec.podMetricsEndpoints.0.targetport", 9000, "'targetport' was unexpected"),
    ("PrometheusRule", "spec.groups.1.rules.0.expr", None, "'expr' is a required property"),
    ("PrometheusRule", "spec.groups.1.rules.0.for", "soon", "'soon' does not match"),
    ("PrometheusRule", "spec.groups.1.rules.0.severity", "page", "'severity' was unexpected"),
    ("PrometheusRule", "spec.groups.1.rules.0.labels.level", 1, "1 is not of type 'string'"),
    ("ScaledObject", "spec.scaleTargetRef", None, "'scaleTargetRef' is a required property"),
    ("ScaledObject", "spec.minReplicas", 2, "'minReplicas' was unexpected"),
    ("ScaledObject", "spec.triggers.0.metadata.threshold", 0.1, "0.1 is not of type 'string'"),
    ("ScaledObject", "spec.fallback.behavior", "keep", "'keep' is not one of"),
    ("ServingRuntime", "spec.containers", None, "'containers' is a required property"),
    ("ServingRuntime", "spec.containers.0.arg", ["serve"], "'arg' was unexpected"),
    ("ServingRuntime", "spec.securityContext", {}, "'securityContext' was unexpected"),
    ("InferenceService", "spec.predictor.minReplicas", "2", "'2' is not of type 'integer'"),
    ("InferenceService", "spec.predictor.model.storageURI", "pvc://x", "'storageURI' was unexpected"),
    ("InferenceService", "spec.predictor.model.modelFormat", None, "'modelFormat' is a required property"),
]


@pytest.mark.parametrize(("name", "path", "value", "expected"), INVALID)
def test_schema_refuses_an_invalid_manifest(name, path, value, expected):
    manifest = copy.deepcopy(MANIFESTS[name])
    *steps, last = path.split(".")
    parent = manifest
    for step in steps:
        parent = parent[int(step) if step.isdigit() else step]
    parent[last] = value
    if value is None:
        del parent[last]
    (refusal,) = refusals(manifest)

    assert expected in refusal
