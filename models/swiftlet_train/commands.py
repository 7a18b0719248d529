"""The commands of `swiftlet` that train. Each imports its dependencies when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from swiftlet_serve import extras
from swiftlet_serve.cli.options import DataFile, Directory, data_option
from swiftlet_serve.cli.progress import advance, note
from swiftlet_serve.errors import SetupError

if TYPE_CHECKING:
    from swiftlet_train.plot import XAxis

runs_option: Final = click.option(
    "--runs", type=Directory, default="runs", show_default=True, help="Folder for the state of runs."
)
device_option: Final = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Device to train on."
)


@click.command()
@click.argument("recipe")
@click.option(
    "--only", multiple=True, metavar="ARTIFACT", help="Make only this artifact of the recipe. Can be repeated."
)
@data_option
@runs_option
@click.option("--out", type=Directory, default="artifacts", show_default=True, help="Folder to write the artifacts to.")
@device_option
def train(recipe: str, only: tuple[str, ...], data: Path, runs: Path, out: Path, device: str) -> None:
    """Trains the models of a recipe and writes them as artifacts.

    RECIPE is a TOML file or the name of a recipe that comes with Swiftlet. An interrupted run resumes where it
    stopped. Needs the extra `models`.
    """
    extras.require("models")
    from swiftlet_train.run_recipe import run_recipe

    for artifact in run_recipe(recipe, only, data, runs, out, note, advance, device):
        click.echo(artifact.path)


@click.command()
@click.argument("study")
@click.argument("artifacts", nargs=-1, metavar="[ARTIFACT...]")
@click.option("--texts", type=DataFile, help="Texts for the study `distances`, one a line.")
@data_option
@runs_option
@click.option("--out", type=Directory, default="studies", show_default=True, help="Folder to write the chart to.")
@device_option
def study(
    study: str, artifacts: tuple[str, ...], texts: Path | None, data: Path, runs: Path, out: Path, device: str
) -> None:
    """Pre-trains the variants of a study and compares their losses or the scores of a task.

    Prints the results as a table, and draws a chart. STUDY is a TOML file or the name of a study
    that comes with Swiftlet. An interrupted study resumes where it stopped. Needs the extras `models` and `plot`.

    The study `distances` trains nothing. It measures how far each layer of each ARTIFACT moves the vectors of the
    tokens of --texts: the L2 distance, and the angle. ARTIFACT is a directory or the name of a bundled model.
    """
    extras.require("models", "plot")
    from swiftlet_train import distances
    from swiftlet_train.run_study import run_study

    if (study == distances.STUDY) != bool(artifacts) or bool(artifacts) != (texts is not None):
        raise SetupError("The study distances needs ARTIFACT and --texts. No other study takes them.")
    if texts is not None:
        table, path = distances.run_distances(artifacts, texts, out)
    else:
        table, path = run_study(study, data, runs, out, note, advance, device)
    click.echo(table)
    click.echo(path)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="losses.png",
    show_default=True,
    help="PNG file to write.",
)
@click.option(
    "--against",
    type=click.Choice(["step", "seconds", "flops"]),
    default="step",
    show_default=True,
    help="Quantity on the x axis.",
)
@click.option("--loss", multiple=True, metavar="NAME", help="Draw only this loss. Can be repeated.")
def plot(runs: tuple[Path, ...], out: Path, against: XAxis, loss: tuple[str, ...]) -> None:
    """Draws the training losses of runs, one curve for each run.

    RUN is the directory of a running or finished run, or its losses.csv. Needs the extra `plot`.
    """
    extras.require("plot")
    from swiftlet_train.plot import plot

    plot({str(run): run for run in runs}, out, against, loss)
    click.echo(out)


COMMANDS: Final = (train, study, plot)
