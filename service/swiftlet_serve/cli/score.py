"""The command `swiftlet score`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from swiftlet_serve.bulk import formats
from swiftlet_serve.bulk.budget import Budget
from swiftlet_serve.bulk.plan import SHARD_ROWS
from swiftlet_serve.cli import progress
from swiftlet_serve.cli.options import engine_option, task_option
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.settings import Settings

DEFAULTS: Final = Settings.model_fields


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "pair"

    def __init__(self, metavar: str) -> None:
        self._metavar = metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  # the signature of click
        return self._metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, content = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not {self._metavar}.", param, ctx)
        return name, content


class BudgetType(click.ParamType[str]):
    """A number of rows or a share in percent."""

    name = "number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  # as above
        return "NUMBER|PERCENT%"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            Budget.parse(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of rows nor a share such as 1%.", param, ctx)
        return str(value)


def _delimiter(context: click.Context, parameter: click.Parameter, value: str) -> str:
    value = {"tab": "\t", "\\t": "\t"}.get(value, value)
    if len(value) != 1 or not value.isascii() or value in '"\r\n\0':
        raise click.BadParameter("It must be one ASCII character, or tab.", context, parameter)
    return value


@click.command()
@click.argument("input", required=False)
@click.option("--model", help="Model, as for `swiftlet serve`: a bundled one, an artifact or a checkpoint.")
@task_option
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to. Start the command again with the same directory to go on, or to add a worker.",
)
@engine_option
@click.option(
    "--column",
    "columns",
    multiple=True,
    type=Pair("FIELD=COLUMN"),
    help="Column of a field of the task's inputs, as text=review. Can be repeated. Default: the column of its name.",
)
@click.option(
    "--parameter",
    "parameters",
    multiple=True,
    type=Pair("NAME=VALUE"),
    help="Parameter of all requests, as top_k=3. The value is JSON, or else a text. Can be repeated.",
)
@click.option("--key", metavar="COLUMN", help="Column that identifies a row. The output has it first.")
@click.option(
    "--keep",
    multiple=True,
    metavar="COLUMN",
    help="Column to copy to the output. Can be repeated. Default: all, or none with --key.",
)
@click.option("--answer-column", default="answer", show_default=True, help="Name of the column of the answers.")
@click.option("--error-column", default="error", show_default=True, help="Name of the column of the error codes.")
@click.option("--input-format", type=click.Choice(formats.names()), help="Format of INPUT. Default: by the suffix.")
@click.option(
    "--format", "output_format", type=click.Choice(formats.names()), help="Format of the output. Default: as INPUT."
)
@click.option(
    "--delimiter", default=",", show_default=True, callback=_delimiter, help="Delimiter of CSV: a character, or tab."
)
@click.option(
    "--max-bad",
    default="1%",
    show_default=True,
    type=BudgetType(),
    help="Bad rows to accept, as a number or as a share of all rows. With more, the command stops.",
)
@click.option(
    "--shard-rows", default=SHARD_ROWS, show_default=True, type=click.IntRange(1), help="Rows of an output file."
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Number of processes.")
@click.option("--cores", type=click.IntRange(1), help="Cores to use, by all workers together. Default: all.")
@click.option("--dry-run", is_flag=True, help="Print the rows, the time and the output size, from a sample.")
@click.option("--verify", is_flag=True, help="Check the files of --out against their manifest. Needs no INPUT.")
def score(
    input: str | None,  # noqa: A002  # the name in the usage
    model: str | None,
    out: Path,
    cores: int | None,
    columns: tuple[tuple[str, str], ...],
    parameters: tuple[tuple[str, str], ...],
    keep: tuple[str, ...],
    dry_run: bool,
    verify: bool,
    **options: Any,
) -> None:
    """Scores the rows of files with a model.

    INPUT is a file, a folder or a pattern of CSV (with a header), JSON Lines (.jsonl) or Parquet files, or such a URL
    of fsspec. Each output file has the rows of a shard in the order of the input, with an answer or an error code for
    each. A command that was interrupted goes on where it stopped. Parquet and URLs need the extra `bulk`.
    """
    if verify:
        _verify(out)
        return
    if input is None or model is None:
        raise click.UsageError("INPUT and --model are needed, unless --verify is given.")
    from swiftlet_serve.bulk.job import Options, run

    job = Options(
        input=input,
        model=model,
        out=out,
        cores=cores or usable_cores(),
        columns=dict(columns),
        parameters={name: _value(value) for name, value in parameters},
        keep=keep or None,
        **options,
    )
    if dry_run:
        _estimate(job)
        return
    started = time.monotonic()
    try:
        summary = run(job, progress.note, lambda done, total: progress.advance(done, total, "rows"))
    except KeyboardInterrupt:
        progress.note("Interrupted. The finished shards are kept: start the command again to go on.")
        sys.exit(130)
    seconds, rows = time.monotonic() - started, summary.rows - summary.earlier
    rate = f", {rows:,} of them now, {rows / seconds:,.0f} a second" if rows else ""
    cut = f", {summary.cut_rows:,} cut to the model's limit of tokens" if summary.cut_rows else ""
    click.echo(f"{counted(summary.rows, 'row')}{rate}; {summary.bad_rows:,} bad{cut}. The output is in {out}.")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 row" or "2,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _estimate(job: Any) -> None:
    from swiftlet_serve.bulk.estimate import estimate

    estimated = estimate(job)
    click.echo(f"rows    {estimated.rows:,} in {counted(estimated.shards, 'shard')}")
    cores, sample = counted(job.cores, "core"), counted(estimated.sample, "row")
    click.echo(f"time    about {_duration(estimated.seconds)} on {cores}, from {sample}")
    click.echo(f"output  about {estimated.output_bytes / 1e6:.3g} MB")
    codes = ", ".join(f"{code} ({count})" for code, count in estimated.codes.most_common())
    click.echo(f"bad     {100 * estimated.bad_share:.2f} % of the sample{f': {codes}' if codes else ''}")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _verify(out: Path) -> None:
    from swiftlet_serve.bulk.verify import verify

    manifest, problems = verify(out, lambda done, total: progress.advance(done, total, "files"))
    for problem in problems:
        click.echo(problem, err=True)
    if not problems:
        files = counted(len(manifest.entries), "file")
        click.echo(f"As they were written: {files} with {counted(manifest.rows, 'row')}.")
    sys.exit(bool(problems))
