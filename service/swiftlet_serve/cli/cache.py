"""`swiftlet cache`: lists the imported models, and removes them."""

from __future__ import annotations

import time

import click

from swiftlet_serve.errors import SetupError
from swiftlet_serve.settings import Settings


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--clear", is_flag=True, help="Remove the models that no process uses, instead of listing them.")
@click.option("--model-cache", default="", help=Settings.model_fields["model_cache"].description)
def cache(names: tuple[str, ...], clear: bool, model_cache: str) -> None:
    """Lists the models that `swiftlet serve` imported, the one that was used last first.

    NAME selects models. Default: all of them.
    """
    from swiftlet_serve.inference.model_cache import ModelCache

    models = ModelCache(model_cache)
    entries = models.entries()
    if missing := set(names) - {entry.path.name for entry in entries}:
        raise SetupError(f"The cache has no model {', '.join(sorted(missing))}. `swiftlet cache` lists those it has.")
    for entry in entries:
        name = entry.path.name
        if names and name not in names:
            continue
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        line = f"{name}  {entry.size / 1e6:.1f} MB, used {used}, {entry.path}"
        if clear:
            kept = f"kept {name}: a process uses it, or another user owns it"
            line = f"removed {line}" if models.remove(entry) else kept
        click.echo(line)
