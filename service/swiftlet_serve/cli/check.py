"""`swiftlet check`: verifies artifacts and replays their golden answers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve.cli import summaries
from swiftlet_serve.cli.options import DataFile, engine_option
from swiftlet_serve.errors import SetupError


@click.command()
@click.argument("artifacts", nargs=-1, metavar="[ARTIFACT...]")
@engine_option
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
