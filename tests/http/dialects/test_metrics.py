"""The metric of requests by dialect."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from swiftlet_serve.http import dialects
from swiftlet_serve.http.app import create_app
from tests.support.apps import make_runtime


def counts(client: TestClient) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["dialect"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == "swiftlet_dialect_requests_total"
    }


def test_requests_are_counted_by_dialect_and_status(artifact_dir):
    with TestClient(create_app(make_runtime(artifact_dir))) as client:
        assert counts(client) == {(name, "2xx"): 0 for name in dialects.names()}
        client.post("/classify", json={"inputs": "a"})
        client.post("/classify", json={"input": "a"})
        client.post("/predict", json={"inputs": "a"})
        client.post("/predict", json={"inputs": " "})
        client.post("/v1/models/no:predict", json={"instances": ["a"]})
        client.get("/info")

        assert {key: count for key, count in counts(client).items() if count} == {
            ("kserve-v1", "4xx"): 1,
            ("sglang", "2xx"): 1,
            ("tei", "2xx"): 1,
            ("tei", "4xx"): 1,
        }
