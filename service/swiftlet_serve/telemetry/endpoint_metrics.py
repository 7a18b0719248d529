"""The metrics of an endpoint that gets copies of requests, and their way back from pages of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from swiftlet_serve.telemetry import families
from swiftlet_serve.telemetry.endpoint_stats import EndpointStats
from swiftlet_serve.telemetry.families import PREFIX
from swiftlet_serve.telemetry.histogram import Histogram

NAME: Final = "shadow_endpoint_"
FIELDS: Final = {
    "shadow_endpoint_answers": "Total responses with answers that can be read.",
    "shadow_endpoint_answers_with_tokens": "Total responses with answers that tell their tokens.",
    "shadow_endpoint_tokens": "Total tokens of the responses that tell them.",
}
"""The metrics of the fields of `Responses`, by their names."""


def collect(
    stats: EndpointStats, add: Callable[[HistogramMetricFamily, Sequence[str], Histogram], None]
) -> Iterator[Metric]:
    """Converts statistics to metrics. `add` adds a histogram to a family."""
    responses = families.counter(
        "shadow_endpoint_responses",
        "Total responses to requests that were copied to the endpoint of `shadow_url`. side: existing is the endpoint, "
        "and candidate this server; outcome: the status, or what there was instead.",
        ["side", "outcome"],
    )
    seconds = families.histogram(
        "shadow_endpoint_response_seconds", "Time of the responses with answers that can be read.", ["side"]
    )
    for name, side in stats.sides.items():
        for outcome, count in sorted(side.outcomes.items()):
            responses.add_metric([name, outcome], count)
        add(seconds, [name], side.seconds)
    yield from (responses, seconds)
    for field, help_ in FIELDS.items():
        family = families.counter(field, help_, ["side"])
        for name, side in stats.sides.items():
            family.add_metric([name], getattr(side, field.removeprefix(NAME)))
        yield family
    sums = GaugeMetricFamily(
        PREFIX + "shadow_endpoint_agreement",
        "How the answers of both sides agree, by kind of answer: hits of sizes agree. `swiftlet shadow-report` "
        "computes intervals from these sums, in which a request is a group.",
        labels=["kind", "sum"],
    )
    for name, kind in sorted(stats.kinds.items()):
        for sum_, value in kind.sums().items():
            sums.add_metric([name, sum_], value)
    yield sums
    yield families.total(
        "shadow_endpoint_dropped",
        "Total copies that were dropped: too many waited, or one was too large.",
        stats.dropped,
    )


def read(pages: Iterable[str]) -> EndpointStats | None:
    """Returns the statistics of servers, added up, from their metrics in Prometheus's text format.

    None if no server copies requests to an endpoint.

    Raises:
        ValueError: a page is not in this format, or is of another version.
    """
    stats, is_found = EndpointStats(), False
    for page in pages:
        samples = [
            (sample.name.removeprefix(PREFIX + NAME), sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.startswith(PREFIX + NAME)
        ]
        if not samples:
            continue
        is_found = True
        one: dict[str, Any] = {"sides": {name: {"counts": [], "outcomes": {}} for name in stats.sides}, "kinds": {}}
        try:
            for name, labels, value in samples:
                _read(name, labels, value, one)
            stats.add(one)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("a page has metrics of another version of Swiftlet.") from error
    return stats if is_found else None


def _read(name: str, labels: Mapping[str, str], value: float, one: dict[str, Any]) -> None:
    """Notes a sample in statistics as `EndpointStats.dump` returns them. Raises KeyError if it has no label."""
    side = one["sides"].get(labels.get("side"), {})
    match name:
        case "dropped_total":
            one["dropped"] = value
        case "agreement":
            one["kinds"].setdefault(labels["kind"], {})[labels["sum"]] = value
        case "responses_total":
            side["outcomes"][labels["outcome"]] = int(value)
        case "response_seconds_bucket":  # each holds those below it
            side["counts"].append(value - sum(side["counts"]))
        case "response_seconds_sum":
            side["seconds"] = value
        case _ if NAME + (field := name.removesuffix("_total")) in FIELDS:
            side[field] = value
