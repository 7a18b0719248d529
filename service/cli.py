"""The command `swiftlet`. Each subcommand is a function here, which imports what it needs when it is called."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from models.artifact import ArtifactError
from service.errors import SetupError
from service.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Model, Runtime


class Commands(click.Group):
    """Says in one line what is wrong with an artifact or with the installation."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ArtifactError, SetupError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="swiftlet")
def main() -> None:
    """Serves small text encoders over HTTP: classification, question answering and fill-mask."""


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting. The settings themselves say what each is and check what it is given."""
    for name, field in reversed(Settings.model_fields.items()):
        default = "" if field.default_factory or field.default in ((), "") else f" [default: {field.default}]"
        command = click.option(
            f"--{name.replace('_', '-')}",
            metavar="NUMBER" if field.annotation is int else "TEXT",
            help=f"{field.description}{default}",
        )(command)
    return command


@main.command()
@setting_options
def serve(**given: str | None) -> None:
    """Serves models over HTTP until it is told to stop.

    Nothing has to be set. Each option may come from the environment too: --timeout-ms from SWIFTLET_TIMEOUT_MS.
    """
    from service import server

    server.serve(_settings(given), _announce)


@main.command()
@click.argument("artifacts", nargs=-1, required=True, metavar="ARTIFACT...")
@click.option("--engine", default=Settings.model_fields["engine"].default, show_default=True, help="Engine to try.")
def check(artifacts: tuple[str, ...], engine: str) -> None:
    """Verifies artifacts and replays their golden answers, as `serve` does before it starts.

    ARTIFACT is a directory or the name of an embedded model. The exit status is 1 if one of them cannot be served.
    """
    from service.runtime import load_model, locate

    failed = False
    for name in artifacts:
        try:
            (path,) = locate([name])
            click.echo(_describe(load_model(path, engine)))
        except (ArtifactError, SetupError) as error:
            failed = True
            click.echo(f"{click.style('unfit', fg='red')}  {error}", err=True)
    sys.exit(failed)


def _settings(given: dict[str, str | None]) -> Settings:
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        hint = f"--{name.replace('_', '-')} or SWIFTLET_{name.upper()}"
        raise click.BadParameter(first["msg"] + ".", param_hint=hint) from None


def _announce(url: str, runtime: Runtime) -> None:
    """Prints where the service is, and a request to each task that works as it stands."""
    click.echo(f"Swiftlet answers at {url}\n")
    for task, lane in runtime.tasks.items():
        example = lane.model.task.Request.model_config["json_schema_extra"]["examples"][0]
        body = shlex.quote(json.dumps(example, ensure_ascii=False))
        click.echo(f"curl {url}/{task} -H 'Content-Type: application/json' -d {body}")
    sys.stdout.flush()


def _describe(model: Model) -> str:
    manifest = model.manifest
    size = sum(file.size for file in manifest.files.values())
    labels = f": {', '.join(manifest.labels)}" if manifest.labels else ""
    golden = (
        "not replayed, since this engine runs no network"
        if model.deviation is None
        else f"off by at most {model.deviation:.3g}, and {manifest.tolerance:.3g} is tolerated"
    )
    return "\n".join(
        [
            f"{click.style('fit', fg='green')}    {manifest.name} {manifest.version}",
            f"       task      {manifest.task}{labels}",
            f"       network   {manifest.architecture}, {manifest.precision}, at most {manifest.max_tokens} tokens",
            f"       files     {len(manifest.files)}, all as listed, {size / 1e6:.1f} MB",
            f"       golden    {golden}",
            f"       engine    {model.engine_name}, ready after {model.seconds:.2f} s",
        ]
    )
