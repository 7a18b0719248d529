"""The lines that commands print about a server, a model or an evaluation."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from swiftlet_serve.inference.loading import LoadedModel
    from swiftlet_serve.inference.runtime import Runtime
    from swiftlet_serve.offline.certificate import Comparison
    from swiftlet_serve.offline.evaluate import Evaluation
    from swiftlet_serve.server import Addresses


def announce(addresses: Addresses, runtime: Runtime) -> None:
    """Prints the addresses of the server, and an example request for each task.

    With JSON logs, one line of JSON has the addresses, unless a person reads it.
    """
    try:
        if runtime.settings.log_format == "json" and not sys.stdout.isatty():
            click.echo(json.dumps({"level": "info", "logger": __name__, "message": "ready"} | addresses._asdict()))
        else:
            click.echo("\n".join(_banner(addresses, runtime)))
        sys.stdout.flush()
    except OSError:  # its reader has gone, which must not end the server, now or when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _banner(addresses: Addresses, runtime: Runtime) -> Iterator[str]:
    url = addresses.public
    admin = f", admin port {addresses.admin}" if addresses.admin else ""
    grpc = f", gRPC port {addresses.grpc}" if addresses.grpc else ""
    yield f"Swiftlet is listening on {url}{admin}{grpc}\n"
    for task, pipeline in runtime.tasks.items():
        own = pipeline.model.task
        example = getattr(own, "example", None) or own.Request.model_config["json_schema_extra"]["examples"][0]
        body = shlex.quote(json.dumps(example, ensure_ascii=False))
        yield f"curl {url}/{task} -H 'Content-Type: application/json' -d {body}"


def description(model: LoadedModel, comparisons: Sequence[Comparison], signer: Path | None) -> str:
    """Returns what `swiftlet check` prints for a model that passed. `signer` is the key that signed its certificate."""
    manifest = model.manifest
    size = sum(file.size for file in manifest.files.values())
    labels = f": {', '.join(manifest.labels)}" if manifest.labels else ""
    golden = (
        "not replayed, because this engine runs no network"
        if model.deviation is None
        else f"largest deviation {model.deviation:.3g}, within the tolerance"
    )
    return "\n".join(
        [
            f"{click.style('ok', fg='green')}      {manifest.name} {manifest.version}",
            f"        task      {', '.join(model.task_names)}{labels}",
            f"        network   {manifest.architecture}, {manifest.precision}, at most {manifest.max_tokens} tokens",
            f"        files     {len(manifest.files)}, checksums verified, {size / 1e6:.1f} MB",
            f"        golden    {golden}",
            f"        engine    {model.engine.title}, loaded in {model.seconds:.2f} s",
            *(f"        certified {line}" for line in comparison_lines(comparisons)),
            *([f"        signed    by the owner of {signer}"] if signer else []),
        ]
    )


def comparison_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yields what a certificate tells of the agreement with fp32, a line for each kind of texts."""
    for known in comparisons:
        scores = [(f"{name} {score.value:.2f} %", score) for name, score in known.agreement.items()]
        scores += [(f"loss {known.loss.value:.2f} points", known.loss)] if known.loss else []
        told = [f"{text} (95 % CI: {score.low:.2f} to {score.high:.2f})" for text, score in scores]
        named = f"{known.texts} ({known.task})" if known.task else known.texts
        yield f"{named}, n = {known.n}: {', '.join(told) or 'it is served in fp32'}"


def score_lines(name: str, result: Evaluation) -> Iterator[str]:
    """Yields the output of `swiftlet evaluate` for one model."""
    for score_name, score in result.scores.items():
        interval = f"95 % CI: {score.low:.2f} to {score.high:.2f}"
        yield f"{name}  {score_name} {score.value:.2f} %  ({interval}, n = {score.n})"
    for bound_name, bound in result.upper_bounds.items():
        best = "never answering" if math.isinf(bound.value) else f"threshold {bound.value:+.2f}"
        yield f"{name}  {bound_name} {bound.score:.2f} %  (upper bound: {best}, chosen on these questions)"
