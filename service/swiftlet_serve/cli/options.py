"""Options that several commands share."""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from swiftlet_serve import tasks
from swiftlet_serve.settings import Settings

if TYPE_CHECKING:
    from swiftlet_serve.migration.report import Price

OF_THE_SHELL: Final = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")


class InputFile(click.Path):
    """A file that a command reads.

    A pipe of the shell, as of `<(zcat file)`, is copied first: a command may read a file more than once. Anything else
    that is no regular file is refused: to open it may never end.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        completes = ctx is not None and ctx.resilient_parsing  # a word in the shell: the command does not run
        if completes or path.is_file():
            return path
        if ctx is None or not OF_THE_SHELL.fullmatch(str(path)):
            self.fail(f"{str(path)!r} is not a regular file.", param, ctx)
        try:
            copy = Path(ctx.with_resource(tempfile.TemporaryDirectory(prefix="pipe-")), "copy")
            with path.open("rb") as pipe, copy.open("wb") as file:
                shutil.copyfileobj(pipe, file)
        except OSError as error:
            self.fail(f"{str(path)!r} cannot be copied to a temporary file: {error.strerror}.", param, ctx)
        return copy


DataFile: Final = InputFile(exists=True, dir_okay=False)
KeyFile: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file with a secret. Commands do not copy it. What reads it refuses pipes."""
Directory: Final = click.Path(file_okay=False, path_type=Path)


class Number(click.FloatRange):
    """A number. NaN is none: each comparison with it is false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number.", param, ctx) if math.isnan(number) else number


data_option: Final = click.option(
    "--data", type=Directory, default="data", show_default=True, help="Folder with the data files."
)

engine_option: Final = click.option(
    "--engine", default=Settings.model_fields["engine"].default, show_default=True, help="Engine to run on."
)

task_option: Final = click.option(
    "--task", type=click.Choice(tasks.names()), help="Task to use. An embedding model has several. Default: its own."
)

skip_option: Final = click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    help="Number of examples to skip at the start. For fill-mask: documents.",
)
limit_option: Final = click.option(
    "--limit", type=click.IntRange(1), help="Number of examples to use. For fill-mask: documents. Default: all."
)

least_agreement_option: Final = click.option(
    "--least-agreement",
    type=Number(0, 1),
    default=0.98,
    show_default=True,
    help="Minimum agreement of the candidate, from 0 to 1.",
)


class PriceType(click.ParamType[Any]):
    """A price of an endpoint."""

    name = "AMOUNT/UNIT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Price:
        from swiftlet_serve.migration.report import Price

        try:
            return value if isinstance(value, Price) else Price.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


existing_price_option: Final = click.option(
    "--existing-price", type=PriceType(), help="Price, as 0.4/1M-tokens or 0.02/1k-requests."
)
candidate_price_option: Final = click.option(
    "--candidate-price", type=PriceType(), help="Price, in the same form and currency."
)
most_ms_option: Final = click.option(
    "--most-ms",
    type=Number(0, min_open=True),
    default=math.inf,
    help="Maximum p99 of the candidate's times, in milliseconds. Default: any.",
)
