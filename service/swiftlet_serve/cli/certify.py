"""`swiftlet certify`: compares a model with its network in fp32, and writes and signs the certificate."""

from __future__ import annotations

from pathlib import Path

import click

from swiftlet_models.artifact import CERTIFICATE, open_artifact
from swiftlet_serve import tasks
from swiftlet_serve.cli.options import DataFile, KeyFile, engine_option, limit_option, skip_option
from swiftlet_serve.cli.progress import advance, note
from swiftlet_serve.cli.summaries import comparison_lines
from swiftlet_serve.settings import Settings


@click.command()
@click.argument("model")
@click.option("--data", type=DataFile, help="Data file to compare on, with labels or without. Default: built-in texts.")
@click.option("--task", type=click.Choice(tasks.names()), help="Task of an embedding model. Default: its own.")
@click.option("--source", help="Checkpoint of an artifact. Default: the one that MODEL or its manifest names.")
@engine_option
@skip_option
@limit_option
@click.option("--sign-key", type=KeyFile, help="Private Ed25519 key in PEM, to sign the certificate with.")
@click.option("--model-cache", default="", help=Settings.model_fields["model_cache"].description)
def certify(
    model: str,
    data: Path | None,
    task: str | None,
    source: str | None,
    engine: str,
    skip: int,
    limit: int | None,
    sign_key: Path | None,
    model_cache: str,
) -> None:
    """Compares a model's answers with those of its network in fp32, and writes its certificate.

    MODEL is an artifact, or a checkpoint as for `swiftlet serve`, whose import in the cache is certified. With
    --sign-key alone, a certificate that is there is signed as it is. Signing needs the extra `sign`.
    `swiftlet check` verifies the certificate.
    """
    from swiftlet_models import sources
    from swiftlet_serve.inference import model_source
    from swiftlet_serve.inference.loading import BUNDLED, locate_one
    from swiftlet_serve.offline import certificate
    from swiftlet_serve.offline.certify import certify
    from swiftlet_serve.offline.evaluate import Measure
    from swiftlet_serve.workers import signature

    key = signature.signing_key(sign_key) if sign_key else None
    path = locate_one(model, model_cache)
    if data or task or not key or open_artifact(path).certificate() is None:
        named = model_source.parse_one(source or model)
        is_checkpoint = sources.identify(named.source).kind in ("checkpoint", "name") and path.parent != BUNDLED
        checkpoint = named if source or is_checkpoint else None
        measure = Measure(data, limit, skip) if data else None
        certify(path, checkpoint, measure, engine=engine, report=note, progress=advance, task=task)
    if key:
        certificate.sign(path, key)
    click.echo("\n".join([str(path / CERTIFICATE), *comparison_lines(certificate.comparisons(open_artifact(path)))]))
