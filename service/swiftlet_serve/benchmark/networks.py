"""The networks of a benchmark: artifacts in int8, each with its fp32 weights and graph beside it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import swiftlet_models
from swiftlet_models import architectures
from swiftlet_models.artifact import SAFETENSORS, WEIGHTS, Artifact, Embedding, File, Head, Manifest
from swiftlet_models.encodings import Encoding
from swiftlet_models.weights import open_weights, save_weights
from swiftlet_serve.types import Batch

GRAPH: Final = "fp32.onnx"
VOCABULARY_SIZE: Final = 1000  # which does not change the speed of a classifier: it only looks words up
FIRST_ID: Final = 5  # after the special tokens: the id of padding changes the positions in some networks


@dataclass(frozen=True)
class Released:
    """A shape that people run: an architecture, and the changes to its default settings."""

    architecture: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    embedding: Embedding | None = None  # of an embedding model; the others are classifiers
    max_tokens: int = 512


MEAN: Final = Embedding("mean", normalize=True)
MINILM: Final = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
DEBERTA: Final = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "c2p": True,
    "p2c": True,
    "share_att_key": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
RELEASED: Final[Mapping[str, Released]] = {
    "mobilebert": Released("mobilebert"),  # google/mobilebert-uncased
    "albert": Released("albert"),  # albert-base-v2
    "bert": Released("bert"),  # bert-base-uncased
    "distilbert": Released("distilbert"),  # distilbert-base-uncased
    "roberta": Released("roberta"),  # roberta-base
    "minilm": Released("bert", MINILM, MEAN),  # all-MiniLM-L6-v2
    "mpnet": Released("mpnet", {}, MEAN),  # all-mpnet-base-v2
    "modernbert": Released("modernbert", max_tokens=8192),  # ModernBERT-base
    "embeddinggemma": Released("gemma3_text", {}, MEAN, 2048),  # embeddinggemma-300m
    "nomic": Released("nomic_bert", {}, MEAN, 8192),  # nomic-embed-text-v1.5
    "deberta": Released("deberta_v2", DEBERTA),  # deberta-v3-base
}
GRAPH_SOURCES: Final = ("graphs/export.py", "heads.py", "architectures/*.py")  # a change in these makes another graph

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Network:
    """An int8 artifact with fp32 weights and a fp32 graph. Its directory need not be a complete artifact."""

    artifact: Artifact
    checkpoint: Path | None = None  # the directory of sentence-transformers that the artifact was imported from
    calibration: Sequence[Batch] = ()  # for engines that choose their ranges in advance

    @property
    def graph(self) -> Path:
        return self.artifact.path / GRAPH

    def in_bf16(self) -> Artifact:
        """Returns the network as an artifact in bf16. Makes its file if needed."""
        path = self.artifact.path / "bf16"
        file, part = path / WEIGHTS, path / "part"
        if not file.exists():
            path.mkdir(exist_ok=True)
            with open_weights(self.artifact.file(SAFETENSORS)) as weights:
                save_weights(part, weights, "bf16")
            part.rename(file)
        files = {WEIGHTS: File(file.stat().st_size, "0" * 64)}
        return Artifact(path, replace(self.artifact.manifest, precision="bf16", files=files))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the parameters, by name."""
        with open_weights(self.artifact.file(SAFETENSORS)) as weights:
            return {name: weight.shape for name, weight in weights.items()}


def released_network(name: str, runs: Path, progress: Progress) -> Network:
    """Returns a classifier with two labels, or an embedding model, in a released shape, with random weights."""
    from torch import manual_seed

    from swiftlet_models.heads import build

    manual_seed(0)
    shape = RELEASED[name]
    config = {"vocab_size": VOCABULARY_SIZE, **shape.changes}
    classifier = shape.embedding is None
    head: Head = "classification" if classifier else "embedding"
    width = 2 if classifier else architectures.load(shape.architecture).Config(**config).hidden_size
    manifest = Manifest(
        name=f"{name}-released",
        version="0",
        architecture=shape.architecture,
        task="classify" if classifier else "embed",
        head=head,
        precision="int8",
        max_tokens=shape.max_tokens,
        vocab_size=VOCABULARY_SIZE,
        width=width,
        labels=("0", "1") if classifier else (),
        problem="single_label" if classifier else None,
        tolerance=1.0,
        config=config,
        source={"weights": "random"},
        embedding=shape.embedding,
    )
    network = build(shape.architecture, config, head, width, shape.embedding)
    return cached_network(manifest, "", network, None, runs, progress)


def artifact_network(artifact: Artifact, runs: Path, progress: Progress) -> Network:
    """Returns an artifact's network. For engines in fp32, its int8 weights are converted back.

    Raises:
        ArtifactError: the weights do not fit the network that the manifest describes.
    """
    from swiftlet_serve.engines.torch import load_network

    checksum = artifact.weights_sha256
    return cached_network(artifact.manifest, checksum, load_network(artifact), artifact.weights, runs, progress)


def cached_network(
    manifest: Manifest, checksum: str, model: Any, int8: Path | None, runs: Path, progress: Progress
) -> Network:
    """Exports a model, which takes a minute or more, unless its files are already under `runs`."""
    import onnx
    import torch

    from swiftlet_models.graphs.export import export
    from swiftlet_models.heads import weights_of

    directory = Path(swiftlet_models.__file__).parent
    sources = [path.read_bytes() for pattern in GRAPH_SOURCES for path in sorted(directory.glob(pattern))]
    identity = json.dumps([manifest.config, manifest.task, checksum, torch.__version__], sort_keys=True).encode()
    key = hashlib.sha256(b"".join([identity, *sources])).hexdigest()[:12]
    path = runs / f"{manifest.name}-{key}"
    path.mkdir(parents=True, exist_ok=True)
    if not (path / GRAPH).exists():
        progress(f"exporting {manifest.name}, only in the first run")
        save_weights(path / SAFETENSORS, weights_of(model), "fp32")
        onnx.save(export(model), path / "part.onnx")
        (path / "part.onnx").rename(path / GRAPH)
    weights = path / (int8.name if int8 else WEIGHTS)
    if int8 is None:
        save_weights(weights, weights_of(model), "int8")
    else:
        shutil.copyfile(int8, weights)
    files = {name: File((path / name).stat().st_size, "0" * 64) for name in (weights.name, SAFETENSORS)}
    return Network(Artifact(path, replace(manifest, files=files)))


def batch_of(rows: int, length: int, seed: int = 0) -> Batch:
    """Returns a batch of random ids. The head reads the first position of each row."""
    return Batch.of(random_sequences([length] * rows, seed))


def random_sequences(lengths: Iterable[int], seed: int = 0) -> list[Encoding]:
    """Returns sequences of random ids. The head reads the first position of each."""
    draw, focus = np.random.default_rng(seed), np.zeros(1, np.int64)
    return [Encoding(draw.integers(FIRST_ID, VOCABULARY_SIZE, n), np.zeros(n, np.int64), focus) for n in lengths]
