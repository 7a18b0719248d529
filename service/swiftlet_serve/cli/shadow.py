"""`swiftlet shadow`: replays a log to an existing service and to a candidate, and compares what they answer."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from swiftlet_serve.cli.options import (
    DataFile,
    KeyFile,
    candidate_price_option,
    existing_price_option,
    least_agreement_option,
    most_ms_option,
)
from swiftlet_serve.cli.progress import advance, note

if TYPE_CHECKING:
    from swiftlet_serve.migration.replay import Pair
    from swiftlet_serve.migration.report import Price


@click.command()
@click.option("--log", required=True, type=DataFile, help="Requests to replay: lines of JSON with path and body.")
@click.option("--existing", metavar="URL", help="Endpoint to leave. Default: the log has its answers.")
@click.option("--candidate", metavar="URL", required=True, help="Endpoint to compare with.")
@click.option("--existing-key-file", type=KeyFile, help="File with the API key. Default: EXISTING_API_KEY.")
@click.option("--candidate-key-file", type=KeyFile, help="File with the API key. Default: CANDIDATE_API_KEY.")
@existing_price_option
@candidate_price_option
@least_agreement_option
@most_ms_option
@click.option(
    "--concurrency", type=click.IntRange(1, 256), default=4, show_default=True, help="Requests at the same time."
)
@click.option(
    "--timeout-ms", type=click.IntRange(1, 600_000), default=30_000, show_default=True, help="Time for a response."
)
@click.option("--limit", type=click.IntRange(1), help="Number of requests to replay. Default: all.")
@click.option(
    "--report",
    "report_file",
    type=click.File("w", encoding="utf-8", lazy=False),
    help="File to write the report to, in Markdown. It has no texts.",
)
@click.option(
    "--training-data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file for the texts with the labels of the existing endpoint, which `swiftlet train` reads.",
)
@click.option("--question", help="Name of the question to learn, if requests ask several.")
def shadow(
    log: Path,
    existing: str | None,
    candidate: str,
    existing_key_file: Path | None,
    candidate_key_file: Path | None,
    existing_price: Price | None,
    candidate_price: Price | None,
    least_agreement: float,
    most_ms: float,
    concurrency: int,
    timeout_ms: int,
    limit: int | None,
    report_file: TextIO | None,
    training_data: Path | None,
    question: str | None,
) -> None:
    """Replays a log to an existing service and to a candidate, and compares what they answer.

    Both get the same requests, so that both must speak the same protocol. Each request is sent once to each. The report
    has the agreement with its interval, the times and the costs of both. The status is 0 if the candidate may take
    over, and 1 if not: the whole interval must lie above --least-agreement. Texts of requests are written to
    --training-data only.
    """
    from itertools import islice

    from swiftlet_serve.migration.endpoint import Endpoint, read_key
    from swiftlet_serve.migration.replay import replay
    from swiftlet_serve.migration.report import Report, differing, lines, objection
    from swiftlet_serve.migration.request_log import Entry, entries
    from swiftlet_serve.migration.training_data import TrainingData

    def endpoint(url: str, file: Path | None, variable: str) -> Endpoint:
        return Endpoint(url, read_key(file, os.environ.get(variable, "")), timeout_ms / 1000)

    leaving = None if existing is None else endpoint(existing, existing_key_file, "EXISTING_API_KEY")
    coming = endpoint(candidate, candidate_key_file, "CANDIDATE_API_KEY")
    # An invalid line ends the command before a request is paid for. Lines that a server adds later do not count.
    total = sum(1 for _ in islice(entries(log, Entry), limit))
    report = Report()
    with TrainingData(training_data, question) if training_data else nullcontext() as data:

        def count(pair: Pair) -> None:
            report.add_pair(pair)
            if data is not None:
                data.add(pair)
            advance(report.candidate.outcomes.total(), total, "requests")

        asyncio.run(replay(islice(entries(log, Entry), total), leaving, coming, concurrency, count))
    reason = objection(report, least_agreement, most_ms)
    prices = (existing_price, candidate_price)
    told = "\n".join(lines(report, reason, prices, f"Replay of {log.name}"))
    if report.differing:
        told += f"\n{differing(report.differing)}"
    if report_file is not None:
        report_file.write(f"{told}\n")
    click.echo(told)
    if data is not None:
        note(f"{data.rows} texts with labels are in {training_data}")
    sys.exit(reason is not None)
