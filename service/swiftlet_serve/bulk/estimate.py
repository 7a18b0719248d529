"""Estimates the time and the output size of a job from a sample: `swiftlet score --dry-run`."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from swiftlet_serve.bulk import formats
from swiftlet_serve.bulk import plan as planning
from swiftlet_serve.bulk.durable import HashedStream
from swiftlet_serve.bulk.job import Options, open_job
from swiftlet_serve.bulk.plan import Plan
from swiftlet_serve.bulk.records import Chunk, RowAnswer
from swiftlet_serve.bulk.scorer import Scorer
from swiftlet_serve.bulk.sources import reading
from swiftlet_serve.inference.loading import load_model

SAMPLES: Final = 8  # shards, at equal distances
SAMPLE_ROWS: Final = 2048  # of all of them together


@dataclass(frozen=True)
class Estimate:
    """What a job would do."""

    rows: int
    shards: int
    sample: int  # rows that the estimates rest on
    seconds: float  # with the cores of this machine
    output_bytes: int
    bad_share: float
    codes: Counter[str]  # the errors of the sample


def estimate(options: Options) -> Estimate:
    """Counts the rows, scores some of them, and writes nothing.

    Raises:
        ArtifactError, SetupError: the job could not begin.
    """
    job = open_job(options)
    plan = planning.make(job.settings, job.sources)
    model = load_model(job.model.artifact.path, options.engine, task=job.model.task_name)
    scorer = Scorer(model, job.maker, options.cores)
    output, stream = formats.load(plan.settings.output_format), HashedStream(io.BytesIO())
    writer, codes, rows = output.writer(stream, plan.layout), Counter[str](), 0
    try:
        started = time.monotonic()
        for chunk in _samples(plan):
            for part in scorer.start(chunk):
                answers: Sequence[RowAnswer] = scorer.finish(part)
                writer.write(part.chunk, answers)
                rows += len(answers)
                codes.update(answer.error for answer in answers if answer.error is not None)
        seconds = time.monotonic() - started
        writer.close()
    finally:
        scorer.close()
        model.engine.close()
    scale = plan.rows / rows if rows else 0.0
    bad_share = codes.total() / rows if rows else 0.0
    return Estimate(plan.rows, len(plan.shards), rows, seconds * scale, int(stream.size * scale), bad_share, codes)


def _samples(plan: Plan) -> Iterator[Chunk]:
    """Yields the first rows of shards that are spread over the input."""
    format_ = formats.load(plan.settings.input_format)
    inputs = list(plan.settings.columns.values())
    step = max(1, len(plan.shards) // SAMPLES)
    rows = SAMPLE_ROWS // max(1, min(SAMPLES, len(plan.shards)))
    for shard in islice(plan.shards, 0, None, step):
        source = plan.sources[shard.source]
        with reading(source.path), source.open() as stream:
            chunks = format_.read(stream, source.path, plan.layout, shard.piece, plan.header, inputs)
            for chunk in islice(chunks, 1):
                yield chunk.part(0, min(rows, len(chunk.records)))
