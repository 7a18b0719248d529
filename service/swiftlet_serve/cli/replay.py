"""`swiftlet replay`: reproduces answers to the bit from their receipts."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from swiftlet_serve.cli.options import DataFile, KeyFile

TIMEOUT_S = 30.0


@click.command()
@click.argument("url")
@click.option("--log", required=True, type=DataFile, help="Lines of JSON with path, body or message, and receipt.")
@click.option("--public-key", required=True, type=DataFile, help="Ed25519 key in PEM that verifies the receipts.")
@click.option("--key-file", type=KeyFile, help="File with the API key. Default: SWIFTLET_API_KEY.")
def replay(url: str, log: Path, public_key: Path, key_file: Path | None) -> None:
    """Reproduces the answers of a log on the server at URL, to the bit.

    A receipt is the header X-Receipt of a response. With a URL such as grpc://127.0.0.1:9001, or grpcs:// for TLS,
    lines have the message of a call in Base64 instead of a body, and a receipt is the trailing metadata x-receipt.
    The server must have the same models and sign with the same key (`receipt_key`). The status is 0 if every receipt is
    valid and every answer is reproduced. Needs the extra `sign`.
    """
    from swiftlet_serve.migration.endpoint import Endpoint, read_key
    from swiftlet_serve.migration.grpc_endpoint import GrpcEndpoint
    from swiftlet_serve.migration.reproduce import reproduce
    from swiftlet_serve.migration.request_log import Answered, entries
    from swiftlet_serve.workers import signature

    key = signature.public_key(public_key)
    create = GrpcEndpoint if url.startswith(("grpc://", "grpcs://")) else Endpoint
    server = create(url, read_key(key_file, os.environ.get("SWIFTLET_API_KEY", "")), TIMEOUT_S)
    results = asyncio.run(reproduce(entries(log, Answered), server, key))
    faults = [(line, fault) for line, fault in results if fault is not None]
    for line, fault in faults:
        click.echo(f"{log.name}, line {line}: {fault}.", err=True)
    click.echo(f"{len(results) - len(faults)} of {len(results)} answers are reproduced.")
    sys.exit(bool(faults) or not results)
