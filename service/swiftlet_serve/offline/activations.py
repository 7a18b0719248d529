"""Finds the fixed ranges of activations for an int8 artifact: runs typical texts in fp32, and compares the errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models.artifact import ACTIVATIONS, ArtifactError, seal
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded, FoldingError, Product
from swiftlet_models.folding import fold_artifact
from swiftlet_models.graphs.activations import Range, Seen, choose, to_arrays
from swiftlet_models.graphs.ragged import Rows, in_fp32, ragged
from swiftlet_models.graphs.writer import Graph
from swiftlet_models.program import Block
from swiftlet_models.weights import open_weights, save_weights
from swiftlet_serve.engines.onnx_cpu import ragged_inputs, session
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import OpenModel, load_model, open_model
from swiftlet_serve.offline.evaluate import encodings
from swiftlet_serve.types import Batch
from swiftlet_serve.workers.golden import golden_inputs

TEXTS: Final = 128  # sequences to run, at most
SAMPLED: Final = 1024  # rows of each product to compare errors on


def record(path: Path, data: Path, task: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """Writes ranges to the artifact in `path`, and to its card where they come from. Returns the latter.

    Raises:
        ArtifactError: the artifact is invalid.
        DatasetError, SetupError: as `write_ranges`, or its golden answers change too much, and it stays as it was.
    """
    model = open_model(path, "onnx_cpu")
    artifact, file = model.artifact, path / ACTIVATIONS
    before = file.read_bytes() if file.exists() else None
    found = write_ranges(model.for_task(task or model.task_name), data, limit)
    seal(path, artifact.manifest, artifact.card() | {"activations": found})
    try:
        load_model(path, "onnx_cpu").engine.close()
    except ArtifactError as error:
        file.unlink() if before is None else file.write_bytes(before)
        seal(path, artifact.manifest, artifact.card())
        raise SetupError(f"The artifact keeps the scales that it had: {error}") from None
    return found


def write_ranges(model: OpenModel, data: Path, limit: int | None = None) -> dict[str, Any]:
    """Writes the ranges of an int8 model to a file in its directory. Returns what they come from, for the card.

    Raises:
        DatasetError: `data` is not in the format of the model's task.
        SetupError: the model cannot have ranges.
    """
    artifact = model.artifact
    if artifact.manifest.precision != "int8":
        raise SetupError("Only an int8 artifact has ranges of activations.")
    texts = [text for text in encodings(model, data, limit or TEXTS) if not text.head]  # and no labels
    texts = [*golden_inputs(artifact), *texts[:: -(-len(texts) // TEXTS)]]
    try:
        with open_weights(artifact.weights) as weights:
            ranges, products = find_ranges(fold_artifact(artifact, weights, 1), texts)
    except FoldingError as error:
        raise SetupError(f"This network cannot have ranges of activations: {error}.") from None
    save_weights(artifact.path / ACTIVATIONS, to_arrays(ranges), "fp32")
    return {"data": data.name, "texts": len(texts), "fixed": len(ranges), "products": products}


def find_ranges(folded: Folded, texts: Sequence[Encoding]) -> tuple[dict[str, Range], int]:
    """Returns the ranges of the products that are nearly as exact with them, and the number of all products."""
    network = replace(folded, program=replace(folded.program, blocks=_unrolled(folded)))
    names: list[str] = []

    def multiply(graph: Graph, name: str, product: Product, rows: Rows) -> str:
        graph.output(f"seen.{len(names)}", "float32", 2, rows.x)
        names.append(name)
        return in_fp32(graph, name, product, rows)

    onnx_session = session(ragged(network, multiply), 1)
    inputs = [value.name for value in onnx_session.get_inputs()]
    outputs = [f"seen.{number}" for number in range(len(names))]
    seen: dict[str, list[Seen]] = {name: [] for name in names}
    for text in texts:
        arrays = ragged_inputs(Batch.of([text]))
        values = onnx_session.run(outputs, {name: arrays[name] for name in inputs})
        for name, value in zip(names, values, strict=True):
            seen[name].append(Seen.of(value, max(1, SAMPLED // len(texts))))
    chosen = {
        name: choose(Seen.together(parts), np.asarray(folded.product(name).matrix, np.float32))
        for name, parts in seen.items()
    }
    return {name: fixed for name, fixed in chosen.items() if fixed is not None}, len(chosen)


def _unrolled(folded: Folded) -> tuple[Block, ...]:
    """Returns the blocks without repetition, because a loop has no outputs of each run."""
    return tuple(Block(block.steps) for block in folded.program.blocks for _ in range(block.times))
