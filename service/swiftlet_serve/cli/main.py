"""The command `swiftlet`. Each subcommand is a function that imports its dependencies when it is called."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click
from pydantic import ValidationError

from swiftlet_models.artifact import ArtifactError, PoolingOption, Precision
from swiftlet_models.errors import ModelError
from swiftlet_serve import extras, tasks
from swiftlet_serve.cli import cache, certify, replay, repository, score, shadow, summaries
from swiftlet_serve.cli.options import DataFile, Directory, data_option, limit_option, skip_option
from swiftlet_serve.cli.progress import advance, note
from swiftlet_serve.errors import SetupError
from swiftlet_serve.settings import Settings, check_variables, split_models

if TYPE_CHECKING:
    from swiftlet_serve.offline.evaluate import Evaluation

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


@main.command()
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


@main.command()
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


@main.command()
@click.argument("artifacts", nargs=-1, metavar="[ARTIFACT...]")
@click.option(
    "--engine", default=Settings.model_fields["engine"].default, show_default=True, help="Engine to check with."
)
@click.option("--public-key", type=DataFile, help="Ed25519 key in PEM that must have signed the certificates.")
def check(artifacts: tuple[str, ...], engine: str, public_key: Path | None) -> None:
    """Verifies artifacts and replays their golden answers.

    `swiftlet serve` does the same at start-up, with the setting signer_key for --public-key. ARTIFACT is a directory or
    the name of a bundled model. Default: all bundled models. The exit status is 1 if an artifact cannot be served, or
    with --public-key if its certificate is missing or not signed with this key. Signatures need the extra `sign`.
    """
    from swiftlet_serve.inference.loading import load_model, locate, locate_one
    from swiftlet_serve.offline.certificate import comparisons
    from swiftlet_serve.workers.signature import check_signature

    failed = False
    for name in artifacts or [str(path) for path in locate(())]:
        try:
            path = locate_one(name)
            if public_key:
                check_signature(path, public_key)
            model = load_model(path, engine)
            click.echo(summaries.description(model, comparisons(model.artifact), public_key))
        except (ArtifactError, SetupError) as error:
            failed = True
            click.echo(f"{click.style('failed', fg='red')}  {error}", err=True)
    sys.exit(failed)


@main.command("import")
@click.argument("source")
@click.option(
    "--task", type=click.Choice(tasks.names()), help="Task of the checkpoint. Default: inferred from its files."
)
@click.option("--name", help="Name of the artifact. Default: the name of the source.")
@click.option("--revision", help="Commit, tag or branch of a hub repository. The artifact records the commit.")
@click.option("--out", type=Directory, default="artifacts", show_default=True, help="Folder to write the artifact to.")
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="int8",
    show_default=True,
    help="Precision of the weights.",
)
@click.option("--data", type=DataFile, help="Data file to measure the loss of rounding on, as for `swiftlet evaluate`.")
@click.option("--limit", type=click.IntRange(1), help="Number of examples of the data file to use. Default: all.")
@click.option(
    "--max-loss",
    type=float,
    default=0.5,
    show_default=True,
    help="Maximum loss of int8 or bf16 on the data file, in points.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Write no artifact if the precision is not good enough. Default: try the next one.",
)
@click.option("--keep-fp32", is_flag=True, help="Add the fp32 weights, for the torch engine.")
@click.option(
    "--pooling", type=click.Choice(get_args(PoolingOption)), help="Pooling of a transformers encoder, to embed."
)
@click.option(
    "--language",
    "languages",
    multiple=True,
    help="Language of the model's texts as a BCP 47 tag, such as en. Repeatable. Default: the model card's languages.",
)
@click.option(
    "--special-token",
    "special_tokens",
    multiple=True,
    metavar="TOKEN",
    help="Special token that texts may contain, such as the marker of an entity. Repeatable. Default: none.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    help="Label that GLiNER finds for requests that name none. Repeatable. Default: requests must name labels.",
)
@click.option(
    "--pair-separator",
    metavar="TOKEN",
    help="Token between the two texts of a pair, for tokenizers that put none there. Empty: nothing.",
)
@click.option(
    "--accept-tokenizer", is_flag=True, help="Do not check the tokenizer on built-in texts, for models of other texts."
)
def import_(source: str, out: Path, data: Path | None, limit: int | None, **options: Any) -> None:
    """Converts a checkpoint of transformers or sentence-transformers into an artifact.

    SOURCE is a directory or the id of a Hugging Face hub repository. A repository in the local cache is not
    downloaded again. `swiftlet serve SOURCE` does the same, and keeps the artifact in its cache.
    """
    from swiftlet_serve.offline.evaluate import Measure
    from swiftlet_serve.offline.import_checkpoint import import_checkpoint

    measure = None if data is None else Measure(data, limit)
    artifact, ignored = import_checkpoint(source, out=out, measure=measure, report=note, progress=advance, **options)
    for tensor in ignored:
        note(f"ignored tensor {tensor}")
    click.echo(f"{artifact.path}\n\nswiftlet serve --models {shlex.quote(str(artifact.path))}")


@main.command()
@click.argument("artifact")
@click.argument("data", type=DataFile)
@score.task_option
@click.option("--engine", default=Settings.model_fields["engine"].default, show_default=True, help="Engine to run on.")
@skip_option
@limit_option
@click.option(
    "--predicate",
    "predicates",
    nargs=2,
    multiple=True,
    metavar="INSTRUCTIONS LABEL",
    help="Instructions of a predicate, and the label that means yes. Can be repeated.",
)
@click.option(
    "--score",
    "scores",
    nargs=2,
    multiple=True,
    metavar="INSTRUCTIONS LABELS",
    help="Instructions of a score, and its labels from low to high, separated by commas. Can be repeated.",
)
@click.option(
    "--precision",
    type=click.FloatRange(0, 100, min_open=True),
    help="Share of right answers, in percent, that decisions are to have: less sure ones are refused. Default: none.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="SVG for reliability diagrams: the share of right answers over the confidence. Default: none.",
)
@click.option(
    "--activations", is_flag=True, help="Find ranges of activations for onnx_cpu, and leave the probabilities alone."
)
def calibrate(
    artifact: str,
    data: Path,
    task: str | None,
    engine: str,
    skip: int,
    limit: int | None,
    predicates: tuple[tuple[str, str], ...],
    scores: tuple[tuple[str, str], ...],
    precision: float | None,
    picture: Path | None,
    activations: bool,
) -> None:
    """Calibrates the probabilities of an artifact, or with --activations its activations.

    Fits a temperature on every other example of a data file, and measures the calibration error on the rest. Writes
    the result to the artifact, for classifiers with the labels that answer predicates and scores. Decisions use the
    temperature. Zero-shot models have another one for predicates, with an offset. For qa and fill-mask, the server does
    not use it. The chance that an answer is right is sigmoid((log-odds of its score + offset) / temperature).
    """
    from swiftlet_serve.inference.loading import load_model, locate_one
    from swiftlet_serve.offline.calibrate import calibrate, record

    if activations and (picture is not None or precision is not None):
        raise click.UsageError("--activations has no probabilities: leave out --picture and --precision.")
    if picture is not None:
        extras.require("plot")
        if not picture.parent.is_dir():
            raise SetupError(f"There is no folder {picture.parent}. Make it, or choose another for --picture.")
    path = locate_one(artifact)
    if activations:  # the texts are enough: skip, engine and labels do not matter
        from swiftlet_serve.offline.activations import record as record_ranges

        found = record_ranges(path, data, task, limit)
        click.echo(f"fixed ranges for {found['fixed']} of {found['products']} products, from {found['texts']} texts")
        return
    share = None if precision is None else precision / 100
    fit = calibrate(load_model(path, engine, task=task), data, skip=skip, limit=limit, precision=share)
    if picture is not None:
        from swiftlet_serve.offline import reliability

        reliability.draw(fit, picture)
    record(path, fit, dict(predicates), {score: labels.split(",") for score, labels in scores})
    offset = f", offset {fit.offset:g}" if fit.offset else ""
    click.echo(
        f"temperature {fit.temperature:g}{offset} (fitted on {fit.fitted_on} examples)\n"
        f"expected calibration error {100 * fit.raw_error:.2f} % before, {100 * fit.calibrated_error:.2f} % after "
        f"(measured on {fit.measured_on} other examples)"
    )
    if predicate := fit.types.get("predicate"):
        click.echo(
            f"predicates: temperature {predicate.temperature:g}, offset {predicate.offset:g}, error "
            f"{100 * predicate.raw_error:.2f} % before, {100 * predicate.calibrated_error:.2f} % after"
        )
    for kind, one in fit.types.items() if precision is not None else ():
        reached = "none" if one.precision is None else f"{100 * one.precision:.1f} %"
        click.echo(
            f"{kind}: refused below {one.threshold:.4f}; {100 * one.coverage:.1f} % of the other examples are "
            f"answered, {reached} of them rightly"
        )


@main.command()
@click.argument("artifact")
@click.argument("data", type=DataFile)
@score.task_option
@click.option("--against", metavar="ARTIFACT", help="Second artifact or ensemble, to compare with.")
@click.option("--engine", default=Settings.model_fields["engine"].default, show_default=True, help="Engine to run on.")
@skip_option
@limit_option
@click.option(
    "--record", is_flag=True, help="Add the scores to the card of the artifact, in place of those on the same file."
)
def evaluate(
    artifact: str,
    data: Path,
    task: str | None,
    against: str | None,
    engine: str,
    skip: int,
    limit: int | None,
    record: bool,
) -> None:
    """Measures the accuracy of an artifact on a data file.

    Each example takes the path of a request. The format of DATA depends on the task: see the guide to importing.
    ARTIFACT can be an ensemble as in --ensembles, A+B or A+B:logits. Its members are measured as well.
    """
    from swiftlet_serve.inference.ensemble import EnsembleModel, Words
    from swiftlet_serve.inference.loading import LoadedModel, load_model, locate_one
    from swiftlet_serve.offline.evaluate import agreement, difference, evaluate
    from swiftlet_serve.offline.evaluate import record as record_scores

    @functools.cache
    def measure(words: str) -> Evaluation:
        members, mean = Words.parse(words)
        results = [measure(member) for member in members] if len(members) > 1 else []
        models = [load_model(locate_one(member), engine, task=task) for member in members]
        model: LoadedModel | EnsembleModel = EnsembleModel.of("ensemble", models, mean) if results else models[0]
        note(f"{model.manifest.name} on {data.name}")
        result = evaluate(model, data, limit=limit, skip=skip, progress=advance)
        for line in summaries.score_lines(model.manifest.name, result):
            click.echo(line)
        if record and words == artifact:
            record_scores(model, data, result, limit=limit, skip=skip)
        return result

    if record and len(Words.parse(artifact).members) > 1:
        raise click.UsageError("An ensemble has no card. Leave --record out, or name one artifact.")
    results = [measure(words) for words in [artifact, *([against] if against else [])]]
    for name, baseline in results[0].baselines.items():
        note(f"baseline, {name}: {baseline.value:.2f} %")
    if against:
        points, same = difference(*results), agreement(*results)
        click.echo(
            f"difference {points.value:+.2f} points (95 % CI: {points.low:+.2f} to {points.high:+.2f}), "
            f"same answer {same.value:.2f} %"
        )


@main.command()
@click.option("--artifact", multiple=True, help="Artifact to run on real text. Can be repeated.")
@click.option("--shape", multiple=True, metavar="NAME", help="Released shape to run, as roberta. Can be repeated.")
@click.option("--checkpoint", type=Directory, help="Checkpoint of the artifact, to include sentence-transformers.")
@click.option("--engine", multiple=True, metavar="NAME", help="Run only this engine. Can be repeated.")
@data_option
@click.option("--runs", type=Directory, default="runs/bench", show_default=True, help="Folder for exported graphs.")
@click.option(
    "--seconds", type=click.FloatRange(0.0), default=20.0, show_default=True, help="Time for each case, in seconds."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Device to measure.")
@click.option("--quick", is_flag=True, help="Run fewer cases, for a shorter time.")
@click.option("--out", type=Directory, help="Folder to write the tables, the data and the chart to.")
@click.option("--name", default="engines", show_default=True, help="Name of the files in the folder.")
def bench(
    artifact: Sequence[str],
    shape: Sequence[str],
    engine: Sequence[str],
    device: str,
    quick: bool,
    out: Path | None,
    name: str,
    **settings: Any,
) -> None:
    """Compares the installed CPU engines, or with --device cuda ways to run --shape on a GPU.

    The CPU engines run on one core, and those cases that have one sequence on all cores as well.
    The networks are those that --artifact and --shape name, or by default MobileBERT and ALBERT-base as released, with
    random weights, and three bundled models. Artifacts run on real text (SST-2, SQuAD, Wikipedia, STS-B), or on a few
    built-in sentences if the data folder does not exist. Embedding models also run batches of random ids. Needs the
    extra `models`, and `plot` for the chart. Takes about 12 minutes, and longer the first time.
    """
    extras.require("models", *(["plot"] if out else []))
    from swiftlet_serve.benchmark.baselines import ENGINES
    from swiftlet_serve.benchmark.bench import bench
    from swiftlet_serve.benchmark.networks import RELEASED
    from swiftlet_serve.benchmark.plan import Plan
    from swiftlet_serve.benchmark.report import text, write

    for kind, names, known in (("engine", engine, ENGINES), ("shape", shape, RELEASED)):
        for chosen in names:
            if chosen not in known:
                raise click.BadParameter(f"{chosen!r} is not one of {', '.join(known)}.", param_hint=f"--{kind}")
    if device != "cpu":
        from swiftlet_serve.benchmark.device import report

        seconds = 3.0 if quick else settings["seconds"]
        click.echo(report(device, shape, settings["runs"], seconds, note, out, name))
        return
    plan = Plan.of(engine, shape, artifact, **settings)
    benchmark = bench(plan.quick() if quick else plan, note, advance)
    click.echo(text(benchmark))
    if out is not None:
        for path in write(benchmark, out, name):
            note(str(path))


main.add_command(cache.cache)
main.add_command(certify.certify)
main.add_command(score.score)
main.add_command(repository.push)
main.add_command(repository.shadow_report)
main.add_command(replay.replay)
main.add_command(shadow.shadow)


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


def _settings(options: dict[str, str | None]) -> Settings:
    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        hint = f"--{name.replace('_', '-')} or SWIFTLET_{name.upper()}"
        raise click.BadParameter(first["msg"] + ".", param_hint=hint) from None
