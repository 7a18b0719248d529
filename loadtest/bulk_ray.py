"""Compares scorers in the same job of Ray Data: ours, and transformers' pipeline. `swiftlet score` runs beside them.

    python -m loadtest.bulk_ray --texts FILE --artifact DIRECTORY [--rows N] [--rounds N]

One actor has one core. The pipeline runs MobileBERT in its released shape in fp32, with random weights; give an
artifact of the same shape (`python -m loadtest.released_shapes`). FILE has one text on each line. The times are
those between an actor's first batch and the end of its last one, without the start of the actors.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import ray
import ray.data

from swiftlet_serve.benchmark.measure import Interval
from swiftlet_serve.bulk.ray_data import BatchScorer
from swiftlet_serve.offline.environment import current_environment

BATCH_ROWS: Final = 256
BLOCKS: Final = 4
STARTED, ENDED = "started", "ended"


class TimedScorer:
    """`BatchScorer`, with the times of each batch."""

    def __init__(self, artifact: str) -> None:
        self._scorer = BatchScorer(artifact)

    def __call__(self, batch: pa.Table) -> pa.Table:
        started = time.time()
        return _with_times(self._scorer(batch), started)


class TimedPipeline:
    """transformers' pipeline as its documentation shows it, with the times of each batch."""

    def __init__(self, checkpoint: str) -> None:
        import torch
        import transformers

        torch.set_num_threads(1)
        self._pipeline: Any = transformers.pipeline("text-classification", model=checkpoint)

    def __call__(self, batch: pa.Table) -> pa.Table:
        started = time.time()
        answers = self._pipeline(batch["text"].to_pylist(), batch_size=32, truncation=True)
        return _with_times(batch.append_column("answer", pa.array([str(answer) for answer in answers])), started)


def _with_times(table: pa.Table, started: float) -> pa.Table:
    ended = time.time()
    for name, value in ((STARTED, started), (ENDED, ended)):
        table = table.append_column(name, pa.array([value] * table.num_rows))
    return table


def rate(scorer: type, argument: Path, texts: list[str]) -> float:
    """Returns the rows per second of an actor."""
    dataset = ray.data.from_arrow([pa.table({"text": texts[number::BLOCKS]}) for number in range(BLOCKS)])
    scored = dataset.map_batches(
        scorer,
        fn_constructor_args=(str(argument),),
        batch_format="pyarrow",
        batch_size=BATCH_ROWS,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    ).materialize()
    table = pa.concat_tables(ray.get(scored.to_arrow_refs()))
    if table.num_rows != len(texts):
        raise SystemExit("Rows are missing.")
    first, last = min(table[STARTED].to_pylist()), max(table[ENDED].to_pylist())
    return float(len(texts) / (last - first))


def score_rate(artifact: Path, texts: list[str], folder: Path) -> float:
    """Returns the rows per second of `swiftlet score`, which it prints."""
    with (folder / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    command = [
        sys.executable,
        "-m",
        "swiftlet_serve",
        "score",
        str(folder / "in.csv"),
        "--model",
        str(artifact),
    ]
    command += ["--cores", "1", "--out", str(folder / "out")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    match = re.search(r"([\d,]+) a second", printed.stdout + printed.stderr)
    if match is None:
        raise SystemExit("swiftlet score printed no rate.")
    return float(match[1].replace(",", ""))


def make_checkpoint(folder: Path, artifact: Path) -> Path:
    """Writes a checkpoint of MobileBERT in its released shape, with random weights and the artifact's tokenizer."""
    import transformers

    config = transformers.MobileBertConfig()
    transformers.MobileBertForSequenceClassification(config).save_pretrained(folder)
    file, padding = str(artifact / "tokenizer.json"), "[PAD]"
    tokenizer: Any = transformers.PreTrainedTokenizerFast
    tokenizer = tokenizer(tokenizer_file=file, pad_token=padding, model_max_length=512)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    lines = [line for line in arguments.texts.read_text("utf-8").splitlines() if line.strip()]
    texts, artifact = list(islice(cycle(lines), arguments.rows)), arguments.artifact.resolve()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rates: dict[str, list[float]] = {"swiftlet score": [], "Ray Data, Swiftlet": [], "Ray Data, pipeline": []}
    with tempfile.TemporaryDirectory() as name:
        checkpoint = make_checkpoint(Path(name) / "checkpoint", artifact)
        for number in range(arguments.rounds):
            folder = Path(name) / str(number)
            folder.mkdir()
            rates["swiftlet score"].append(score_rate(artifact, texts, folder))
            rates["Ray Data, Swiftlet"].append(rate(TimedScorer, artifact, texts))
            rates["Ray Data, pipeline"].append(rate(TimedPipeline, checkpoint, texts))
    ray.shutdown()
    print(f"{current_environment('ray', 'transformers', 'torch').description()} {len(texts):,} rows.\n")
    print("| scorer, one core | rows/s | of the pipeline's |\n|---|---|---|")
    pipeline = rates["Ray Data, pipeline"]
    for scorer, own in rates.items():
        ratio = Interval.of([own_rate / pipeline_rate for own_rate, pipeline_rate in zip(own, pipeline, strict=True)])
        print(f"| {scorer} | {Interval.of(own).value:,.0f} | {ratio.value:.1f} ({ratio.low:.1f} to {ratio.high:.1f}) |")


if __name__ == "__main__":
    main()
