"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

Directory: Final = click.Path(file_okay=False, path_type=Path)

data_option: Final = click.option(
    "--data", type=Directory, default="../shared/data", show_default=True, help="Folder with the data files."
)
