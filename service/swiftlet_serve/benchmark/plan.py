"""The plan of a benchmark: its networks, and the cases of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from swiftlet_models.encodings import Encoding
from swiftlet_models.operations import Operations
from swiftlet_serve.benchmark.baselines import ENGINES
from swiftlet_serve.benchmark.networks import (
    Network,
    Progress,
    artifact_network,
    batch_of,
    random_sequences,
    released_network,
)
from swiftlet_serve.inference.loading import OpenModel, locate, open_model
from swiftlet_serve.offline.draft import golden_encodings
from swiftlet_serve.offline.evaluate import encodings
from swiftlet_serve.types import Batch

Size = tuple[int, int] | Literal["mixed"]
"""Rows and tokens of a batch, or sequences of mixed lengths."""

SHAPES: Final[Mapping[str, Sequence[Size]]] = {
    "mobilebert": ((1, 16), (1, 32), (1, 128), (8, 32), (8, 128), (1, 384)),
    "albert": ((1, 16), (1, 128), (8, 128)),
}
OTHER_SHAPES: Final[Mapping[str, Sequence[Size]]] = {"modernbert": ((1, 16), (1, 128), (1, 1024), (1, 8192), "mixed")}
# Of embedding models, and of shapes without sizes of their own.
SIZES: Final[Sequence[Size]] = ((1, 16), (1, 128), (32, 32), "mixed")
SCALED_SIZES: Final = ((1, 16), (8, 32))  # also measured on two cores
# Of 32 sequences: from 4 to 256 tokens, with as many between 4 and 8 as between 128 and 256.
MIXED_LENGTHS: Final[Sequence[int]] = np.geomspace(4, 256, 32).astype(int).tolist()
BUNDLED: Final = ("mobilebert-sst2", "mobilebert-qa", "mobilebert-fill-mask")
DATA: Final = {
    "classify": "sst2/dev.tsv",
    "qa": "squad/squad-v1.1.eval.json",
    "fill-mask": "corpora/enwiki2015_cap8k.txt.xz",
    "embed": "stsb/dev.csv",
}
REQUESTS: Final = {"classify": 32, "qa": 10, "fill-mask": 16, "embed": 16}  # of a data file
BATCH_TOKENS: Final = 512  # of a batch of similar lengths, with padding: ONNX Runtime is fastest at it


@dataclass(frozen=True)
class Plan:
    engines: Sequence[str] = tuple(ENGINES)
    shapes: Mapping[str, Sequence[Size]] = field(default_factory=lambda: SHAPES)
    models: Sequence[str] = BUNDLED
    data: Path = Path("data")
    runs: Path = Path("runs/bench")
    seconds: float = 20.0  # for each case, unless its rounds take longer
    memory: bool = True
    checkpoint: Path | None = None  # of the models, for sentence-transformers

    @classmethod
    def of(cls, engines: Sequence[str], shapes: Sequence[str], models: Sequence[str], **settings: Any) -> Plan:
        """Returns the plan of the named networks and engines. By default, it has those of the class.

        sentence-transformers runs only with a checkpoint, or if it is named.
        """
        with_checkpoint = settings.get("checkpoint") is not None
        default = [name for name in ENGINES if with_checkpoint or not name.startswith("sentence_transformers")]
        plan = cls([name for name in ENGINES if name in engines] or default, **settings)
        if not shapes and not models:
            return plan
        sizes = {**SHAPES, **OTHER_SHAPES}
        return replace(plan, shapes={name: sizes.get(name, SIZES) for name in shapes}, models=models)

    def quick(self) -> Plan:
        """Returns a plan of a minute or two, once the networks are exported: fewer cases, and wide intervals."""
        shapes = {name: shapes[:2] for name, shapes in self.shapes.items()}
        return replace(self, shapes=shapes, models=self.models[:1], seconds=min(self.seconds, 3.0), memory=False)

    @property
    def text_source(self) -> str:
        return self.data.name if self.data.is_dir() else "built-in sentences"


@dataclass(frozen=True)
class Case:
    """The batches that every engine runs."""

    name: str
    network: Network
    batches: Sequence[Batch]
    scaled: bool = False  # also measured on two cores

    @property
    def rows(self) -> int:
        return sum(map(len, self.batches))

    def multiply_adds(self, operations: Operations) -> int:
        """Returns the multiply-adds that one pass needs."""
        return sum(
            operations.count(np.diff(b.offsets).tolist(), np.diff(b.focus_offsets).tolist()) for b in self.batches
        )


def cases_by_network(plan: Plan, progress: Progress) -> Iterator[tuple[Network, list[Case]]]:
    """Yields each network with its cases.

    Raises:
        ArtifactError, SetupError: one of the models cannot be opened.
        DatasetError: a data file holds no texts for its task.
    """
    paths = locate(plan.models) if plan.models else []  # first, because exports take long
    for name, sizes in plan.shapes.items():
        network = released_network(name, plan.runs, progress)
        yield network, [_size_case(name, network, size) for size in sizes]
    for path in paths:
        model = open_model(path, "native")
        texts = texts_of(model, plan.data)
        network = replace(
            artifact_network(model.artifact, plan.runs, progress),
            checkpoint=plan.checkpoint,
            calibration=_batches(texts),
        )
        name, task = model.manifest.name, model.manifest.task
        sizes = SIZES if model.manifest.embedding else ()
        yield (
            network,
            [
                *(_size_case(name, network, size) for size in sizes),
                Case(f"{name}, {task}, one by one", network, [Batch.of([text]) for text in texts]),
                Case(f"{name}, {task}, together", network, _batches(texts)),
            ],
        )


def _size_case(name: str, network: Network, size: Size) -> Case:
    if size == "mixed":
        return Case(f"{name} mixed lengths", network, _batches(random_sequences(MIXED_LENGTHS)))
    rows, tokens = size
    return Case(f"{name} {rows}×{tokens}", network, [batch_of(rows, tokens)], size in SCALED_SIZES)


def _batches(sequences: Iterable[Encoding]) -> list[Batch]:
    return [Batch.of(group) for group in batches_of_similar_length(sequences)]


def texts_of(model: OpenModel, data: Path) -> list[Encoding]:
    """Returns texts of the data, or built-in ones. Rows are whole, because some engines cannot rank."""
    task = model.manifest.task
    if data.is_dir():
        texts = encodings(model, data / DATA[task], REQUESTS[task])
        return [Encoding(text.input_ids, text.token_type_ids, text.focus) for text in texts]
    return golden_encodings(model.tokenizer, model.manifest)


def batches_of_similar_length(texts: Iterable[Encoding], max_tokens: int = BATCH_TOKENS) -> Iterator[list[Encoding]]:
    """Yields batches of at most `max_tokens`, with padding. A longer text is a batch of its own."""
    batch: list[Encoding] = []
    for text in sorted(texts, key=lambda text: len(text.input_ids)):
        if batch and (len(batch) + 1) * len(text.input_ids) > max_tokens:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
