"""The command `swiftlet evaluate`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swiftlet_serve.cli import summaries
from swiftlet_serve.cli.options import DataFile, engine_option, limit_option, skip_option, task_option
from swiftlet_serve.cli.progress import advance, note

if TYPE_CHECKING:
    from swiftlet_serve.offline.evaluate import Evaluation


@click.command()
@click.argument("artifact")
@click.argument("data", type=DataFile)
@task_option
@click.option("--against", metavar="ARTIFACT", help="Second artifact or ensemble, to compare with.")
@engine_option
@skip_option
@limit_option
@click.option(
    "--record", is_flag=True, help="Add the scores to the card of the artifact. They replace those on the same file."
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
