"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

DataFile: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
Directory: Final = click.Path(file_okay=False, path_type=Path)

data_option: Final = click.option(
    "--data", type=Directory, default="data", show_default=True, help="Folder with the data files."
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
    type=click.FloatRange(0, 1),
    default=0.98,
    show_default=True,
    help="Minimum agreement of the candidate, from 0 to 1.",
)
