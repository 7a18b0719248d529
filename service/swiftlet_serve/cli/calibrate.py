"""The command `swiftlet calibrate`."""

from __future__ import annotations

from pathlib import Path

import click

from swiftlet_serve import extras
from swiftlet_serve.cli.options import DataFile, Number, engine_option, limit_option, skip_option, task_option
from swiftlet_serve.errors import SetupError


@click.command()
@click.argument("artifact")
@click.argument("data", type=DataFile)
@task_option
@engine_option
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
    type=Number(0, 100, min_open=True),
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
