"""`swiftlet key`: creates an API key."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to add the line to. A new file is readable by its owner only. Default: standard output.",
)
def key(name: str, file: Path | None) -> None:
    """Creates an API key for NAME.

    The key is printed once, on standard error. Its line for `api_keys_file` holds only the hash of the key:
    swiftlet key NAME --file keys. A server that runs reloads the file on SIGHUP.
    """
    from swiftlet_serve.http.gate.api_keys import add_line, make_key

    made, line = make_key(name)
    if file is None:
        click.echo(line)
    else:
        add_line(file, line)
    click.echo(f"API key for {name} (it is not shown again): {made}", err=True)
