"""The networks of a benchmark: artifacts in int8, each with its fp32 weights and graph beside it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import swiftlet_serve.models
from swiftlet_serve.models.artifact import ONNX, SAFETENSORS, Artifact, File, Manifest
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.types import Batch

GRAPH: Final = "fp32.onnx"
VOCABULARY_SIZE: Final = 1000  # a classifier only looks words up, so the size does not change its speed
RELEASED: Final[Mapping[str, Mapping[str, Any]]] = {  # changes to the defaults of `models.architectures`
    "mobilebert": {"vocab_size": VOCABULARY_SIZE},  # google/mobilebert-uncased
    "albert": {"vocab_size": VOCABULARY_SIZE},  # albert-base-v2
}
GRAPH_SOURCES: Final = ("graphs/export.py", "heads.py", "architectures/*.py")  # a change in these makes another graph

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Network:
    """An int8 artifact with fp32 weights and a fp32 graph. Its directory need not be a complete artifact."""

    artifact: Artifact

    @property
    def graph(self) -> Path:
        return self.artifact.path / GRAPH

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the parameters, by name."""
        from safetensors import safe_open

        with safe_open(self.artifact.file(SAFETENSORS), "numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no mapping


def released_network(architecture: str, runs: Path, progress: Progress) -> Network:
    """Returns a classifier in the released shape, with random weights."""
    from torch import manual_seed

    from swiftlet_serve.models.heads import build

    manual_seed(0)
    config = RELEASED[architecture]
    manifest = Manifest(
        name=f"{architecture}-released",
        version="0",
        architecture=architecture,
        task="classify",
        head="classification",
        precision="int8",
        max_tokens=512,
        vocab_size=config["vocab_size"],
        width=2,
        labels=("0", "1"),
        problem="single_label",
        tolerance=1.0,
        config=config,
        source={"weights": "random"},
    )
    return cached_network(manifest, "", build(architecture, config, "classification", 2), None, runs, progress)


def artifact_network(artifact: Artifact, runs: Path, progress: Progress) -> Network:
    """Returns an artifact's network. For engines in fp32, its int8 weights are converted back.

    Raises:
        ArtifactError: the weights do not fit the network that the manifest describes.
    """
    from swiftlet_serve.service.engines.torch import load_network

    checksum = artifact.manifest.files[ONNX].sha256
    return cached_network(artifact.manifest, checksum, load_network(artifact), artifact.file(ONNX), runs, progress)


def cached_network(
    manifest: Manifest, checksum: str, model: Any, int8: Path | None, runs: Path, progress: Progress
) -> Network:
    """Exports a model, which takes a minute or more, unless its files are already under `runs`."""
    import onnx
    import torch
    from safetensors.torch import save_file

    from swiftlet_serve.models.graphs.export import export
    from swiftlet_serve.models.graphs.quantize import quantize

    directory = Path(swiftlet_serve.models.__file__).parent
    sources = [path.read_bytes() for pattern in GRAPH_SOURCES for path in sorted(directory.glob(pattern))]
    identity = json.dumps([manifest.config, manifest.task, checksum, torch.__version__], sort_keys=True).encode()
    key = hashlib.sha256(b"".join([identity, *sources])).hexdigest()[:12]
    path = runs / f"{manifest.name}-{key}"
    path.mkdir(parents=True, exist_ok=True)
    if not (path / GRAPH).exists():
        progress(f"exporting {manifest.name}, only in the first run")
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path / SAFETENSORS)
        onnx.save(export(model), path / "part.onnx")
        (path / "part.onnx").rename(path / GRAPH)
    if int8 is None:
        onnx.save(quantize(onnx.load(path / GRAPH)), path / ONNX)
    else:
        shutil.copyfile(int8, path / ONNX)
    files = {name: File((path / name).stat().st_size, "0" * 64) for name in (ONNX, SAFETENSORS)}
    return Network(Artifact(path, replace(manifest, files=files)))


def batch_of(rows: int, length: int, seed: int = 0) -> Batch:
    """Returns a batch of random ids, of which the head reads the first position of each row."""
    draw = np.random.default_rng(seed)
    types, focus = np.zeros(length, np.int64), np.zeros(1, np.int64)
    return Batch.of([Encoding(draw.integers(1, VOCABULARY_SIZE, length), types, focus) for _ in range(rows)])
