"""The metrics of a model repository and of shadow traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from swiftlet_serve.telemetry import families
from swiftlet_serve.telemetry.families import PREFIX
from swiftlet_serve.telemetry.histogram import Histogram
from swiftlet_serve.telemetry.request_stats import OUTCOMES, VersionStats
from swiftlet_serve.telemetry.shadow_stats import RESULTS
from swiftlet_serve.telemetry.snapshot import RepositoryState

Add = Callable[[HistogramMetricFamily, Sequence[str], Histogram], None]


def collect(
    repository: RepositoryState, versions: Mapping[tuple[str, int], VersionStats], add: Add
) -> Iterator[Metric]:
    """Converts the state of a repository to metrics.

    Args:
        repository: the state.
        versions: the statistics by model and version.
        add: adds a histogram to a family.
    """
    durations = families.histogram(
        "model_version_request_duration_seconds",
        "Duration of accepted requests, by version of the model in the model repository.",
        ["model", "version", "outcome"],
    )
    for (model, version), stats in sorted(versions.items()):
        for outcome in OUTCOMES:
            add(durations, [model, str(version), outcome], stats.durations[outcome])
    yield durations
    states = GaugeMetricFamily(
        PREFIX + "model_version_ready",
        "Versions of models in the model repository: 1 if the version is in memory, else 0.",
        labels=["model", "version"],
    )
    for state in repository.versions:
        states.add_metric([state.model, str(state.version)], state.state == "ready")
    yield states
    loads = families.counter(
        "model_loads", "Total versions that were loaded or failed to load, by result.", ["model", "result"]
    )
    for model in sorted({model for model, _ in repository.loads}):
        for result in ("loaded", "failed"):
            loads.add_metric([model, result], repository.loads.get((model, result), 0))
    yield loads
    yield from _shadows(repository, add)
    yield families.gauge(
        "models_bytes",
        "Size of the models of the repository in memory, by the size of their files.",
        repository.bytes,
    )
    yield families.gauge(
        "repository_reachable",
        "Whether the last look at the model repository succeeded, and its desired.json is valid (1), or not (0).",
        repository.reachable,
    )


def _shadows(repository: RepositoryState, add: Add) -> Iterator[Metric]:
    requests = families.counter(
        "shadow_requests",
        "Total copies of requests to a candidate version, by result. agreed and differed: the candidate's answer "
        "compared with the served one; failed: the candidate had an error; dropped: the server was busy.",
        ["model", "version", "result"],
    )
    shifts = families.histogram(
        "shadow_score_shift", "Difference of the scores of equal answers.", ["model", "version"]
    )
    durations = families.histogram(
        "shadow_engine_seconds",
        "The engine's time for a request that was copied (served) and for its copy (candidate).",
        ["model", "version", "side"],
    )
    for (model, version), stats in sorted(repository.shadows.items()):
        labels = [model, str(version)]
        for result in RESULTS:
            requests.add_metric([*labels, result], stats.results[result])
        add(shifts, labels, stats.shifts)
        add(durations, [*labels, "served"], stats.served_s)
        add(durations, [*labels, "candidate"], stats.candidate_s)
    yield from (requests, shifts, durations)
