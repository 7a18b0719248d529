"""Reads the metrics of a server."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import ask

MODELS = ("tiny-classify", "tiny-qa")
ACCEPTED = "swiftlet_requests_accepted_total"
FINISHED = "swiftlet_requests_finished_total"
IN_FLIGHT = "swiftlet_requests_in_flight"
REFUSED = "swiftlet_requests_refused_total"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Samples by name and labels."""


def parse(text: str) -> Series:
    """Parses the Prometheus text format."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(series: Series, name: str, **labels: str) -> float:
    """Returns the sum of all samples of this name that have these labels."""
    return sum(value for (one, own), value in series.items() if one == name and labels.items() <= set(own))


def imbalance(series: Series) -> dict[str, float]:
    """Returns, for each model, the accepted requests minus those finished or in flight."""
    return {
        model: total(series, ACCEPTED, model=model)
        - total(series, FINISHED, model=model)
        - total(series, IN_FLIGHT, model=model)
        for model in MODELS
    }


async def scrape(port: int) -> Series:
    response = await ask(port, "/metrics", None)
    assert response.status == 200
    return parse(response.body.decode())
