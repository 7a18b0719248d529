"""Measures what engines do to the vectors of a trained embedding model, on pairs of texts with a similarity.

    python -m loadtest.embedding_accuracy ARTIFACT CHECKPOINT ../shared/data/stsb/dev.csv

ARTIFACT is imported from CHECKPOINT, a directory of sentence-transformers. The engines are those of `swiftlet bench`.
The table holds Spearman's correlation of cosine and similarity, the mean and the lowest cosine of a vector with that of
sentence-transformers in fp32, and the largest difference of a number. Vectors have length 1. OpenVINO's int8 is
calibrated on the first texts of the data file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import metrics
from swiftlet_models.encodings import Encoding
from swiftlet_serve import evaluation
from swiftlet_serve.benchmark.baselines import ENGINES, LoadedEngine, Unsupported, missing_package
from swiftlet_serve.benchmark.networks import artifact_network
from swiftlet_serve.benchmark.plan import batches_of_similar_length
from swiftlet_serve.inference.loading import locate, open_model
from swiftlet_serve.types import Batch

REFERENCE: Final = "sentence_transformers"
CALIBRATION_TEXTS: Final = 128


def vectors(engine: LoadedEngine, sequences: Sequence[Encoding]) -> NDArray[np.float64]:
    """Returns the vectors of sequences (N, D), with length 1. Batches hold sequences of similar length."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].input_ids))  # as the batches are
    groups = batches_of_similar_length([sequences[i] for i in order])
    rows = np.concatenate([row for group in groups for row in engine.call(Batch.of(group))]).astype(np.float64)
    unit = np.empty_like(rows)
    unit[order] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def measured(embeddings: NDArray[Any], reference: NDArray[Any], similarities: Sequence[float]) -> list[str]:
    """Returns the cells of an engine. The vectors of a pair follow each other."""
    scores = (embeddings[::2] * embeddings[1::2]).sum(1).tolist()
    score = metrics.spearman(scores, similarities)
    expected = metrics.spearman_parts((reference[::2] * reference[1::2]).sum(1).tolist(), similarities)
    loss = metrics.difference(metrics.spearman_parts(scores, similarities), expected)
    cosines = (embeddings * reference).sum(1)
    return [
        f"{score.value:.2f}",
        f"{loss.value:+.2f} ({loss.low:+.2f} to {loss.high:+.2f})",
        f"{cosines.mean():.4f}",
        f"{cosines.min():.3f}",
        f"{np.abs(embeddings - reference).max():.1e}",
    ]


def table(artifact: str, checkpoint: Path, data: Path, runs: Path, limit: int | None) -> Iterator[str]:
    """Yields the lines of the table of one model and data file."""
    model = open_model(locate([artifact])[0], "native")
    cases = list(evaluation.create("embed", model.task).cases(data, 0, limit))
    requests = [model.task.Request.model_validate(case.body) for case in cases]
    sequences = [sequence for request in requests for sequence in model.task.encode(request)]
    calibration = [Batch.of(group) for group in batches_of_similar_length(sequences[:CALIBRATION_TEXTS])]
    network = replace(artifact_network(model.artifact, runs, print), checkpoint=checkpoint, calibration=calibration)
    similarities = [case.expected[0] for case in cases]
    reference = vectors(ENGINES[REFERENCE].load(network), sequences)
    yield f"\n## {model.manifest.name}, {data.name}, {len(cases):,} pairs\n"
    yield "| engine | Spearman, % | difference, points (95 % CI) | mean cosine | lowest cosine | largest difference |"
    yield "|---|---|---|---|---|---|"
    for name, compared in ENGINES.items():
        if missing_package(compared):
            continue
        try:
            engine = compared.load(network)
        except Unsupported:
            continue
        embeddings = reference if name == REFERENCE else vectors(engine, sequences)
        yield f"| {engine.title} | {' | '.join(measured(embeddings, reference, similarities))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/bench"))
    parser.add_argument("--limit", type=int, help="Number of pairs. Default: all.")
    arguments = parser.parse_args()
    for line in table(arguments.artifact, arguments.checkpoint, arguments.data, arguments.runs, arguments.limit):
        print(line, flush=True)


if __name__ == "__main__":
    main()
