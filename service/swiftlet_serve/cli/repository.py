"""The commands of the model repository."""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

import click

from swiftlet_serve.cli.options import (
    Number,
    candidate_price_option,
    existing_price_option,
    least_agreement_option,
    most_ms_option,
)

if TYPE_CHECKING:
    from swiftlet_serve.migration.report import Price

FETCH_TIMEOUT_S: Final = 10.0


@click.command()
@click.argument("artifact")
@click.argument("repository")
@click.option("--version", type=click.IntRange(1, 10**9 - 1), help="Version to add. Default: the next one.")
def push(artifact: str, repository: str, version: int | None) -> None:
    """Adds ARTIFACT to a model repository as a new version of its model.

    ARTIFACT is a directory or the name of a bundled model. REPOSITORY is a directory or a URL. A version never changes:
    one that exists with another content is refused. The version appears at once, when it is complete.
    """
    from swiftlet_models.artifact import open_artifact
    from swiftlet_serve.inference.loading import locate_one
    from swiftlet_serve.repository import store

    path = locate_one(artifact)
    opened = open_artifact(path)
    try:
        number, is_new = store.push(store.open_store(repository), opened, version)
    except store.RepositoryError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{opened.manifest.name} {number}{'' if is_new else ' is there already'}")


@click.command("shadow-report")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@least_agreement_option
@click.option(
    "--most-time",
    type=Number(0, min_open=True),
    default=1.2,
    show_default=True,
    help="Maximum engine time of a candidate version, as a multiple of the served version's.",
)
@most_ms_option
@existing_price_option
@candidate_price_option
@click.option("--api-key", envvar="SWIFTLET_API_KEY", help="API key of the servers, if they need one.")
def shadow_report(
    urls: tuple[str, ...],
    least_agreement: float,
    most_time: float,
    most_ms: float,
    existing_price: Price | None,
    candidate_price: Price | None,
    api_key: str | None,
) -> None:
    """Tells whether a candidate may take over. Reads the metrics of servers with shadow traffic.

    URL is the address of a server's metrics, such as http://127.0.0.1:9000/metrics. Several servers are added up.
    Candidates are versions of a model repository, and servers that copy requests to an existing service (`shadow_url`).
    Prices and --most-ms are of these. The status is 1 if a candidate may not take over, and 2 without a candidate.
    """
    from swiftlet_serve.migration import report as of_endpoint
    from swiftlet_serve.repository import report
    from swiftlet_serve.telemetry import endpoint_metrics

    try:
        pages = [_fetch_text(url, api_key) for url in urls]
        candidates, endpoint = report.read(pages), endpoint_metrics.read(pages)
    except ValueError:  # the parser's message may quote a whole page
        raise click.ClickException("URL has no metrics. They are at a server's /metrics.") from None
    for line in report.lines(candidates, least_agreement, most_time):
        click.echo(line)
    objections = [report.objection(candidate, least_agreement, most_time) for candidate in candidates.values()]
    if endpoint is not None:
        objections.append(reason := of_endpoint.objection(endpoint, least_agreement, most_ms))
        for line in of_endpoint.lines(endpoint, reason, (existing_price, candidate_price), "Live share"):
            click.echo(line)
        click.echo(f"Copies that were dropped: {endpoint.dropped}")
    if not objections:
        click.echo("No model has a candidate with shadow traffic, and no server copies requests.")
        sys.exit(2)
    sys.exit(any(objections))


def _fetch_text(url: str, api_key: str | None) -> str:
    """Returns the text at an address of a server.

    Raises:
        ClickException: the address is invalid, cannot be reached, or responds with an error or no text.
    """
    if not url.startswith(("http://", "https://")):
        raise click.ClickException(f"{url} must begin with http:// or https://.")
    try:
        request = urllib.request.Request(url, headers={"x-api-key": api_key} if api_key else {})  # noqa: S310  # checked
        with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT_S) as response:  # noqa: S310  # as above
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        step = {401: "Set --api-key.", 404: "Metrics are at /metrics, on the admin port if there is one."}
        problem = f"{url} responds with status {error.code}. {step.get(error.code, '')}".rstrip()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", type(error).__name__)  # other messages may quote the key
        problem = f"{url} cannot be read: {reason}. Check the address, and that a server runs."
    raise click.ClickException(problem)
