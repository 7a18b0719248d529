"""Checks the output of a job against its manifest: `swiftlet score --verify`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from swiftlet_serve.bulk import formats
from swiftlet_serve.bulk.job import read_plan
from swiftlet_serve.bulk.manifest import Entry, Manifest
from swiftlet_serve.bulk.plan import Plan
from swiftlet_serve.errors import SetupError


def verify(directory: Path, progress: Callable[[int, int], None]) -> tuple[Manifest, list[str]]:
    """Reads all output files of a job.

    Returns:
        The manifest, and a sentence for each problem.

    Raises:
        SetupError: the directory has no plan, or the plan or the manifest are invalid.
    """
    plan = read_plan(directory)
    if plan is None:
        raise SetupError(f"{directory} has no plan, so it is not the output of swiftlet score.")
    manifest = Manifest(directory, plan, check_files=False)
    problems = []
    for shard in plan.shards:
        entry = manifest.entries.get(shard.index)
        if entry is None:
            problems.append(f"{plan.output_name(shard)} is not finished.")
        else:
            problems += _problems(directory, entry, plan)
        progress(shard.index + 1, len(plan.shards))
    return manifest, problems


def _problems(directory: Path, entry: Entry, plan: Plan) -> Iterator[str]:
    path = directory / entry.file
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        yield f"{entry.file} cannot be read: {error.strerror}."
        return
    if digest != entry.sha256:
        yield f"{entry.file} has other bytes than when it was written."
        return
    try:
        rows = formats.load(plan.settings.output_format).count(path, plan.layout)
    except ValueError:
        yield f"{entry.file} cannot be read as {plan.settings.output_format}."
        return
    if rows != entry.rows:
        yield f"{entry.file} has {rows} rows, and the manifest says {entry.rows}."
