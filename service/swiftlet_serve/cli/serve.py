"""The command `swiftlet serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click
from pydantic import ValidationError

from swiftlet_serve.cli import summaries
from swiftlet_serve.settings import Settings, check_variables, split_models


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting. `Settings` holds the descriptions and validates the values."""
    for name, field in reversed(Settings.model_fields.items()):
        default = "" if field.default_factory or field.default in ((), "", None) else f" [default: {field.default}]"
        command = click.option(
            f"--{name.replace('_', '-')}",
            metavar="NUMBER" if field.annotation is int else "TEXT",
            help=f"{field.description}{default}",
        )(command)
    return command


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE...]")
@setting_options
def serve(sources: tuple[str, ...], **options: Any) -> None:
    """Serves models over HTTP until it receives SIGINT or SIGTERM.

    SOURCE is a model, as in --models: the name of a bundled model, the directory of an artifact or of a checkpoint of
    transformers or sentence-transformers, or the name of a repository on the Hugging Face hub. A checkpoint is imported
    once, and kept in a cache. Options follow a colon: ./mine:task=qa,name=mine.

    All options have defaults. Each option can also be set by an environment variable, for example --timeout-ms by
    SWIFTLET_TIMEOUT_MS.
    """
    from swiftlet_serve import server

    check_variables(os.environ)
    if sources:
        options["models"] = (*sources, *split_models(options["models"] or ""))
    server.serve(_settings(options), summaries.announce)


def _settings(options: dict[str, str | None]) -> Settings:
    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        hint = f"--{name.replace('_', '-')} or SWIFTLET_{name.upper()}"
        raise click.BadParameter(first["msg"] + ".", param_hint=hint) from None
