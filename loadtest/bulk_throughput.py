"""Compares `swiftlet score` with the bare engine on the same texts, and measures its memory over many rows.

    python -m loadtest.bulk_throughput --texts FILE [--model NAME] [--rows N] [--memory-rows N]

The bare engine runs the batches of `swiftlet bench`: sequences of similar length, tokenised before. `swiftlet score`
reads a CSV file, tokenises, runs, decodes and writes. Rounds alternate, on as many threads, and the ratio of each pair
of rounds gives the interval. The ratio of the CPU time, which `swiftlet bench` measures too, hardly depends on other
work of the machine. It counts all work of `swiftlet score` as if no other core were free for it. FILE has one text on
each line.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from loadtest.server_process import resident_kib
from swiftlet_serve.benchmark.measure import Interval
from swiftlet_serve.benchmark.plan import batches_of_similar_length
from swiftlet_serve.bulk import plan as planning
from swiftlet_serve.bulk.job import Options, open_job
from swiftlet_serve.bulk.leases import Leases
from swiftlet_serve.bulk.manifest import Manifest
from swiftlet_serve.bulk.scorer import Scorer
from swiftlet_serve.bulk.worker import Worker
from swiftlet_serve.inference.loading import LoadedModel, load_model, locate
from swiftlet_serve.types import Batch

ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", action="append", help="Can be repeated. Default: mobilebert-sst2.")
    parser.add_argument("--rows", type=int, default=10_000, help="Rows of a round.")
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--memory-rows", type=int, default=0, help="Rows of the measurement of memory.")
    parser.add_argument("--engine", default="native")
    arguments = parser.parse_args()
    texts = [line for line in arguments.texts.read_text("utf-8").splitlines() if line.strip()]
    for name in arguments.model or ["mobilebert-sst2"]:
        (path,) = locate([name])
        model = load_model(path, arguments.engine)
        for cores in arguments.cores:
            print(throughput(model, list(islice(cycle(texts), arguments.rows)), cores), flush=True)
        if arguments.memory_rows:
            print(memory(model, texts, arguments.memory_rows, max(arguments.cores)), flush=True)


def throughput(model: LoadedModel, texts: Sequence[str], cores: int) -> str:
    """Returns a sentence with rows per second of both, and their ratio."""
    request = model.task.Request
    encodings = [encoding for text in texts for encoding in model.task.encode(request.model_validate({"inputs": text}))]
    batches = [Batch.of(group) for group in batches_of_similar_length(encodings)]
    rounds: list[tuple[float, float, float, float]] = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(cores) as threads:
        source = write(Path(directory) / "in.csv", texts)
        for number in range(ROUNDS + 1):
            started, cpu = time.perf_counter(), time.process_time()
            list(threads.map(model.engine.run, batches))
            engine_s, engine_cpu_s = time.perf_counter() - started, time.process_time() - cpu
            score_s, score_cpu_s = score(model, source, Path(directory) / str(number), cores)
            rounds.append((engine_s, score_s, engine_cpu_s, score_cpu_s))
    del rounds[0]  # it warms up
    engine, scored = (Interval.of([len(texts) / times[i] for times in rounds]).value for i in (0, 1))
    wall, cpu_share = (Interval.of([100 * times[i] / times[i + 1] for times in rounds]) for i in (0, 2))
    tokens = sum(len(encoding.input_ids) for encoding in encodings) / len(texts)
    return (
        f"{model.manifest.name}, {cores} threads, {len(texts):,} texts of {tokens:.1f} tokens: "
        f"engine {engine:,.0f} rows/s, swiftlet score {scored:,.0f} rows/s; {_shown(wall)} of its rate, and "
        f"{_shown(cpu_share)} of it by CPU time"
    )


def _shown(share: Interval) -> str:
    return f"{share.value:.1f} % ({share.low:.1f} to {share.high:.1f})"


def memory(model: LoadedModel, texts: Sequence[str], rows: int, cores: int) -> str:
    """Returns a sentence with the growth of resident memory over a job, from the end of its first fifth."""
    samples: list[tuple[int, int]] = []

    with tempfile.TemporaryDirectory() as directory:
        source = write(Path(directory) / "in.csv", islice(cycle(texts), rows))
        done = 0

        def on_rows(open_rows: int) -> None:
            nonlocal done
            done += open_rows == 0  # a shard has ended
            samples.append((min(done * planning.SHARD_ROWS + open_rows, rows), resident_kib(os.getpid())))

        started = time.monotonic()
        score(model, source, Path(directory) / "out", cores, on_rows)
        seconds = time.monotonic() - started
    late = np.array([sample for sample in samples if sample[0] >= rows / 5], float)
    slope = np.polyfit(late[:, 0], 1024 * late[:, 1], 1)[0]
    return (
        f"{model.manifest.name}, {cores} threads, {rows:,} rows in {seconds:,.0f} s: resident memory "
        f"{late[0, 1] / 1024:.1f} MiB after a fifth, {late[-1, 1] / 1024:.1f} MiB at the end, "
        f"slope {slope:+.4f} bytes a row"
    )


def write(path: Path, texts: Iterable[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))
    return path


def score(
    model: LoadedModel, source: Path, out: Path, cores: int, on_rows: Callable[[int], None] = lambda _: None
) -> tuple[float, float]:
    """Runs a job with a loaded model. Returns its wall-clock and CPU seconds, from the plan to the last shard."""
    options = Options(str(source), str(model.artifact.path), out, model.engine_name, cores, key="id")
    job = open_job(options)
    out.mkdir()
    started, cpu = time.perf_counter(), time.process_time()  # the artifact has been verified
    plan = planning.make(job.settings, job.sources)
    scorer = Scorer(model, job.maker, cores)
    with Leases(out) as leases:
        Worker(out, plan, Manifest(out, plan), leases, scorer, options.budget, on_rows).run()
    scorer.close()
    return time.perf_counter() - started, time.process_time() - cpu


if __name__ == "__main__":
    main()
