"""The command `swiftlet`. Each subcommand is a function here, which imports what it needs when it is called."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click
from pydantic import ValidationError

from swiftlet_serve.models.artifact import ArtifactError, Precision
from swiftlet_serve.models.errors import ModelError
from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.settings import Settings

if TYPE_CHECKING:
    from swiftlet_serve.models.training.plot import Against
    from swiftlet_serve.service.loading import LoadedModel
    from swiftlet_serve.service.runtime import Runtime


Directory: Final = click.Path(file_okay=False, path_type=Path)
BAR_WIDTH: Final = 40
CLEAR: Final = "\r\x1b[K"  # a bar that is drawn on the line
DataFile: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class Commands(click.Group):
    """Says in one line what is wrong with an artifact, a checkpoint or the installation."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ModelError, SetupError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="swiftlet-serve")
def main() -> None:
    """Serves small text encoders over HTTP: classification, question answering and fill-mask."""


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting. The settings themselves say what each is and check what it is given."""
    for name, field in reversed(Settings.model_fields.items()):
        default = "" if field.default_factory or field.default in ((), "", None) else f" [default: {field.default}]"
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
    from swiftlet_serve.service.http import server

    server.serve(_settings(given), _announce)


@main.command()
@click.argument("name")
def key(name: str) -> None:
    """Makes an API key for NAME.

    The key is shown once, on standard error. The line for `api_keys_file`, which holds only its hash, goes to standard
    output: swiftlet key NAME >> keys
    """
    from swiftlet_serve.service.http.api_keys import make_key

    made, line = make_key(name)
    click.echo(f"The key of {name}, which is not shown again: {made}", err=True)
    click.echo(line)


@main.command()
@click.argument("artifacts", nargs=-1, metavar="[ARTIFACT...]")
@click.option("--engine", default=Settings.model_fields["engine"].default, show_default=True, help="Engine to try.")
def check(artifacts: tuple[str, ...], engine: str) -> None:
    """Verifies artifacts and replays their golden answers, as `serve` does before it starts.

    ARTIFACT is a directory or the name of an embedded model; without any, all embedded ones are tried. The exit status
    is 1 if one of them cannot be served.
    """
    from swiftlet_serve.service.loading import load_model, locate

    failed = False
    for name in artifacts or [str(path) for path in locate(())]:
        try:
            (path,) = locate([name])
            click.echo(_describe(load_model(path, engine)))
        except (ArtifactError, SetupError) as error:
            failed = True
            click.echo(f"{click.style('unfit', fg='red')}  {error}", err=True)
    sys.exit(failed)


@main.command("import")
@click.argument("source")
@click.option("--task", required=True, type=click.Choice(tasks.names()), help="What the checkpoint was trained for.")
@click.option("--name", help="Name of the artifact; the source's own if left out.")
@click.option("--revision", help="Commit, tag or branch of a hub repository; the one found is recorded.")
@click.option("--out", type=Directory, default="artifacts", show_default=True, help="Folder the artifact goes to.")
@click.option("--precision", type=click.Choice(get_args(Precision)), default="int8", show_default=True)
@click.option("--data", type=DataFile, help="File to measure fp32 and int8 on: .tsv, SQuAD .json, or running text.")
@click.option("--limit", type=click.IntRange(1), help="Examples of it to measure on.")
@click.option("--max-loss", type=float, default=0.5, show_default=True, help="Points that int8 may lose on the data.")
@click.option("--keep-fp32", is_flag=True, help="Add the fp32 weights, for the torch engine.")
def import_(source: str, out: Path, data: Path | None, limit: int | None, **options: Any) -> None:
    """Makes an artifact of a transformers checkpoint.

    SOURCE is a directory, or the name of a repository on the Hugging Face hub, taken from the local cache if it is
    there. Needs the extra `models`.
    """
    with needing("models"):
        from swiftlet_serve.service.offline.import_checkpoint import import_checkpoint
        from swiftlet_serve.service.offline.release import Measure

    measure = None if data is None else Measure(data, limit)
    artifact, ignored = import_checkpoint(source, out=out, measure=measure, report=note, progress=bar, **options)
    for tensor in ignored:
        note(f"ignored {tensor}")
    click.echo(f"{artifact.path}\n\nswiftlet serve --models {shlex.quote(str(artifact.path))}")


@main.command()
@click.argument("artifact")
@click.argument("data", type=DataFile)
@click.option("--against", metavar="ARTIFACT", help="A second artifact, to compare with.")
@click.option("--engine", default=Settings.model_fields["engine"].default, show_default=True, help="Engine to run on.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Examples (for fill-mask, documents) to pass over.")
@click.option("--limit", type=click.IntRange(1), help="Examples to measure on.")
def evaluate(artifact: str, data: Path, against: str | None, engine: str, skip: int, limit: int | None) -> None:
    """Measures an artifact as it is served on a data file, and may compare it with another.

    DATA is, for classify, tab-separated texts with labels; for qa, a file in SQuAD's format; for fill-mask, running
    text.
    """
    from swiftlet_serve.service.loading import load_model, locate
    from swiftlet_serve.service.offline.evaluate import agreement, difference, evaluate

    results = []
    for path in locate([artifact, *([against] if against else [])]):
        model = load_model(path, engine)
        note(f"{model.manifest.name} on {data.name}")
        results.append(evaluate(model, data, limit=limit, skip=skip, progress=bar))
        for name, score in results[-1].scores.items():
            click.echo(
                f"{model.manifest.name}  {name} {score.value:.2f} %  "
                f"(95 %: {score.low:.2f} to {score.high:.2f}, n = {score.n})"
            )
        for name, bound in results[-1].upper_bounds.items():
            where = "never answering" if math.isinf(bound.value) else f"with a threshold of {bound.value:+.2f}"
            click.echo(
                f"{model.manifest.name}  {name} {bound.score:.2f} %  "
                f"({where}, chosen on these questions: an upper bound, and not what is served)"
            )
    for name, score in results[0].baselines.items():
        note(f"{name} would reach {score.value:.2f} %")
    if against:
        ahead, same = difference(*results), agreement(*results)
        click.echo(
            f"difference {ahead.value:+.2f} points (95 %: {ahead.low:+.2f} to {ahead.high:+.2f}), "
            f"same answer {same.value:.2f} %"
        )


@main.command()
@click.option(
    "--artifact", multiple=True, help="Artifact to run on real text; may be repeated. Three embedded ones if left out."
)
@click.option("--engine", multiple=True, metavar="NAME", help="Run only this contender; may be repeated.")
@click.option(
    "--data",
    type=Directory,
    default="../shared/data",
    show_default=True,
    help="Folder with SST-2, SQuAD and Wikipedia.",
)
@click.option(
    "--runs", type=Directory, default="runs/bench", show_default=True, help="Folder that keeps exported graphs."
)
@click.option("--seconds", type=click.FloatRange(0.0), default=20.0, show_default=True, help="Time for each case.")
@click.option("--quick", is_flag=True, help="A few cases, for a few seconds each.")
@click.option("--out", type=Directory, help="Folder to write tables, data and a picture to.")
def bench(
    artifact: tuple[str, ...],
    engine: tuple[str, ...],
    data: Path,
    runs: Path,
    seconds: float,
    quick: bool,
    out: Path | None,
) -> None:
    """Measures CPU engines side by side on one core: ours, and those of others that are installed.

    The networks are MobileBERT and ALBERT-base as released, with random weights, and artifacts on real text, or on a
    few sentences where there is no such data. Needs the extra `models`, and `plot` for the picture. Takes about twelve
    minutes, and some more the first time.
    """
    with needing("models"):
        from swiftlet_serve.service.benchmark.baselines import ENGINES
        from swiftlet_serve.service.benchmark.bench import bench
        from swiftlet_serve.service.benchmark.plan import EMBEDDED, Plan
        from swiftlet_serve.service.benchmark.report import text, write

        for name in engine:
            if name not in ENGINES:
                raise click.BadParameter(f"{name!r} is none of {', '.join(ENGINES)}.", param_hint="--engine")
        names = [name for name in ENGINES if name in engine] or list(ENGINES)
        plan = Plan(names, models=artifact or EMBEDDED, data=data, runs=runs, seconds=seconds)
        found = bench(plan.quick() if quick else plan, note)
    click.echo(text(found))
    if out is not None:
        with needing("plot"):
            for path in write(found, out):
                note(str(path))


@main.command()
@click.argument("recipe")
@click.option(
    "--only", multiple=True, metavar="ARTIFACT", help="Make only this artifact of the recipe; may be repeated."
)
@click.option(
    "--data", type=Directory, default="../shared/data", show_default=True, help="Folder with the recipe's data."
)
@click.option("--runs", type=Directory, default="runs", show_default=True, help="Folder that keeps the state of runs.")
@click.option("--out", type=Directory, default="artifacts", show_default=True, help="Folder the artifacts go to.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to train.")
def train(recipe: str, only: tuple[str, ...], data: Path, runs: Path, out: Path, device: str) -> None:
    """Follows a recipe from a corpus to artifacts.

    RECIPE is a TOML file, or the name of one that comes with Swiftlet. A run that was stopped goes on where it was.
    Needs the extra `models`.
    """
    with needing("models"):
        from swiftlet_serve.service.offline.train import follow

    for artifact in follow(recipe, only, data, runs, out, note, bar, device):
        click.echo(artifact.path)


@main.command()
@click.argument("study")
@click.option(
    "--data", type=Directory, default="../shared/data", show_default=True, help="Folder with the study's data."
)
@click.option("--runs", type=Directory, default="runs", show_default=True, help="Folder that keeps the state of runs.")
@click.option("--out", type=Directory, default="studies", show_default=True, help="Folder the plot goes to.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to train.")
def study(study: str, data: Path, runs: Path, out: Path, device: str) -> None:
    """Pre-trains the variants of a study; prints the table of what they lost on held-out text, and draws the plot.

    STUDY is a TOML file, or the name of one that comes with Swiftlet. A study that was stopped goes on where it was.
    Needs the extras `models` and `plot`.
    """
    with needing("models,plot"):
        from swiftlet_serve.service.offline.study import conduct

    table, path = conduct(study, data, runs, out, note, bar, device)
    click.echo(table)
    click.echo(path)


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="losses.png",
    show_default=True,
    help="PNG file to write.",
)
@click.option(
    "--against", type=click.Choice(["step", "seconds", "flops"]), default="step", show_default=True, help="The x axis."
)
@click.option("--loss", multiple=True, metavar="NAME", help="Draw only this loss; may be repeated.")
def plot(runs: tuple[Path, ...], out: Path, against: Against, loss: tuple[str, ...]) -> None:
    """Draws how the losses of runs fell, one curve a run.

    RUN is the directory of a run that goes on or has ended, or its losses.csv. Needs the extra `plot`.
    """
    with needing("plot"):
        from swiftlet_serve.models.training.plot import plot

    plot({str(run): run for run in runs}, out, against, loss)
    click.echo(out)


def note(text: str) -> None:
    """Says how far long work has come; on standard error, so that results can be piped."""
    click.echo(f"{CLEAR}{text}" if sys.stderr.isatty() else text, err=True)


def bar(done: int, total: int) -> None:
    """Draws how far work is that takes long, where somebody is watching."""
    if sys.stderr.isatty():
        filled = BAR_WIDTH * done // total
        click.echo(f"\r[{'#' * filled:-<{BAR_WIDTH}}] {done}/{total}", nl=done == total, err=True)


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Says which extra to install where an import fails for want of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in {"service", "models"}:
            raise
        raise SetupError(f"This needs the package {error.name!r}: pip install 'swiftlet[{extra}]'.") from None


def _settings(given: dict[str, str | None]) -> Settings:
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        hint = f"--{name.replace('_', '-')} or SWIFTLET_{name.upper()}"
        raise click.BadParameter(first["msg"] + ".", param_hint=hint) from None


def _announce(url: str, admin_url: str | None, runtime: Runtime) -> None:
    """Prints where the service is, and a request to each task that works as it stands."""
    click.echo(f"Swiftlet answers at {url}" + (f", its own port is {admin_url}" if admin_url else "") + "\n")
    for task, pipeline in runtime.tasks.items():
        example = pipeline.model.task.Request.model_config["json_schema_extra"]["examples"][0]
        body = shlex.quote(json.dumps(example, ensure_ascii=False))
        click.echo(f"curl {url}/{task} -H 'Content-Type: application/json' -d {body}")
    sys.stdout.flush()


def _describe(model: LoadedModel) -> str:
    manifest = model.manifest
    size = sum(file.size for file in manifest.files.values())
    labels = f": {', '.join(manifest.labels)}" if manifest.labels else ""
    golden = (
        "not replayed, since this engine runs no network"
        if model.deviation is None
        else f"off by at most {model.deviation:.3g}, which is tolerated"
    )
    return "\n".join(
        [
            f"{click.style('fit', fg='green')}    {manifest.name} {manifest.version}",
            f"       task      {manifest.task}{labels}",
            f"       network   {manifest.architecture}, {manifest.precision}, at most {manifest.max_tokens} tokens",
            f"       files     {len(manifest.files)}, all as listed, {size / 1e6:.1f} MB",
            f"       golden    {golden}",
            f"       engine    {model.engine.title}, ready after {model.seconds:.2f} s",
        ]
    )
