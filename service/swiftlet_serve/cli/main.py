"""The command `swiftlet`. Each subcommand is a function that imports its dependencies when it is called."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import click

from swiftlet_models.errors import ModelError
from swiftlet_serve.cli import (
    bench,
    cache,
    calibrate,
    certify,
    check,
    evaluate,
    import_checkpoint,
    key,
    replay,
    repository,
    score,
    serve,
    shadow,
)
from swiftlet_serve.errors import SetupError

TRAINING: Final = "swiftlet_train"
ANY_ARGUMENTS: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


class Commands(click.Group):
    """Prints an error in an artifact, a checkpoint or the installation as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ModelError, SetupError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="swiftlet-serve")
def main() -> None:
    """Serves small text encoders over HTTP."""


for _command in (
    serve.serve,
    key.key,
    check.check,
    import_checkpoint.import_,
    calibrate.calibrate,
    evaluate.evaluate,
    bench.bench,
    cache.cache,
    certify.certify,
    score.score,
    repository.push,
    repository.shadow_report,
    replay.replay,
    shadow.shadow,
):
    main.add_command(_command)


def _add_training(group: click.Group) -> None:
    """Adds the commands of the distribution swiftlet-train, or commands that say how to install it."""
    if find_spec(TRAINING) is not None:
        for command in import_module(f"{TRAINING}.commands").COMMANDS:
            group.add_command(command)
        return
    for name in ("train", "study", "plot"):
        about = "Not installed: it is a part of the distribution swiftlet-train."
        group.add_command(click.Command(name, ANY_ARGUMENTS, _refuse_training, help=about))


def _refuse_training() -> None:
    raise SetupError("Training is a distribution of its own. In a checkout of Swiftlet, run: pip install ./models")


_add_training(main)
