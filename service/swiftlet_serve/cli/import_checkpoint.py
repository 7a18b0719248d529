"""The command `swiftlet import`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, get_args

import click

from swiftlet_models.artifact import AdapterForm, PoolingOption, Precision
from swiftlet_serve import tasks
from swiftlet_serve.cli.options import DataFile, Directory, Number
from swiftlet_serve.cli.progress import advance, note


@click.command("import")
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
    type=Number(0),
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
    "--adapter",
    "adapter_form",
    type=click.Choice(get_args(AdapterForm)),
    help="Merge an adapter of PEFT into its base, which is faster if it is served alone. Default: it stays apart, if "
    "it can, to share its base with others.",
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
