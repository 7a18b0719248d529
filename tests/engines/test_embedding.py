"""The head `embedding` on every engine: a vector for each sequence, which does not depend on the rest of the batch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from swiftlet_models import architectures
from swiftlet_models.artifact import ONNX, Embedding
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded
from swiftlet_models.folding import fold
from swiftlet_models.graphs.export import export
from swiftlet_models.graphs.ragged import in_fp32, in_int8, in_signed
from swiftlet_models.heads import Model, build
from swiftlet_models.ragged.network import Network
from swiftlet_serve.engines.native import Native
from swiftlet_serve.engines.onnx_cpu import PaddedOnnx, RaggedOnnx
from swiftlet_serve.engines.openvino import OpenVino
from swiftlet_serve.engines.torch import PaddedTorch, RaggedTorch
from swiftlet_serve.types import Batch, Engine
from tests.support.checkpoints import randomise, relative_error
from tests.support.native_kernels import CONFIGS, best, encoding, rows_of, weights
from tests.support.tiers import first

CPU = torch.device("cpu")
FP32 = 3e-6
INT8 = 0.07
DENSE_WIDTH = 37  # no multiple of a vector
KINDS = (
    Embedding("cls"),
    Embedding("mean"),
    Embedding("max"),
    Embedding("mean", dense="tanh"),
    Embedding("cls", dense="identity"),
    Embedding("mean", dense="unit"),
)
IDS = [f"{kind.pooling}-{kind.dense}" for kind in KINDS]
ARCHITECTURES = tuple(CONFIGS)
HIDDEN = {name: architectures.load(name).Config(**config).hidden_size for name, config in CONFIGS.items()}
# Sequences of different lengths, one of a single token; padded, most of the batch is padding.
MIXED = [encoding(length, [0], length) for length in (9, 1, 33, 40, 2)]


@cache
def network(architecture: str, kind: int) -> Model:
    """Returns a network with random weights. Tests must not change it."""
    width = DENSE_WIDTH if KINDS[kind].dense else HIDDEN[architecture]
    model = build(architecture, CONFIGS[architecture], "embedding", width, KINDS[kind])
    randomise(model)
    return model.eval()


def folded(architecture: str, kind: int) -> Folded:
    parameters = weights(network(architecture, kind))
    return fold(architecture, CONFIGS[architecture], parameters, embedding=KINDS[kind])


@torch.no_grad()
def expected(architecture: str, kind: int, encodings: Sequence[Encoding]) -> torch.Tensor:
    """Pools each sequence alone with the plainest code."""
    model, rows = network(architecture, kind), []
    for one in encodings:
        ids, types = (torch.from_numpy(array)[None] for array in (one.input_ids, one.token_type_ids))
        hidden = model.encoder(ids, types, torch.ones_like(ids, dtype=torch.bool))[0]
        pooled = {"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.max(0).values}[KINDS[kind].pooling]
        if KINDS[kind].dense == "unit":
            pooled /= pooled.norm()
        if KINDS[kind].dense:
            pooled = model.head.output(pooled)
        rows.append(pooled.tanh() if KINDS[kind].dense == "tanh" else pooled)
    return torch.stack(rows)


RAGGED: dict[str, tuple[Callable[[Folded], Engine], float]] = {
    "onnx_cpu fp32": (lambda network: RaggedOnnx(network, in_fp32, threads=1), FP32),
    "onnx_cpu int8": (lambda network: RaggedOnnx(network, in_int8, threads=1), INT8),
    "native": (lambda network: Native(best(), network), INT8),
    "torch": (lambda network: RaggedTorch(Network(network, CPU, torch.float32), CPU, 512), FP32),
}


# Each architecture with every third kind, and each kind with a third of the architectures.
MANY = itertools.product(ARCHITECTURES, range(len(KINDS)))
every = pytest.mark.parametrize(
    ("architecture", "kind"),
    first(MANY, *((name, k) for i, name in enumerate(ARCHITECTURES) for k in range(i % 3, 6, 3))),
)


@pytest.mark.parametrize("engine", RAGGED)
@every
def test_engine_pools_the_tokens_of_each_sequence(architecture: str, kind: int, engine: str) -> None:
    create, off = RAGGED[engine]
    rows = rows_of(create(folded(architecture, kind)), MIXED)

    assert rows.shape == (len(MIXED), DENSE_WIDTH if KINDS[kind].dense else HIDDEN[architecture])
    assert relative_error(rows, expected(architecture, kind, MIXED)) <= off


@every
def test_native_computes_a_vector_in_a_batch_as_alone_to_the_bit(architecture: str, kind: int) -> None:
    engine = Native(best(), folded(architecture, kind))
    for one, row in zip(MIXED, engine.run(Batch.of(MIXED)), strict=True):
        (alone,) = engine.run(Batch.of([one]))
        assert row.tobytes() == alone.tobytes()


@pytest.mark.parametrize("multiply", [in_fp32, in_int8, in_signed])
@pytest.mark.parametrize("kind", range(3), ids=IDS[:3])
def test_onnx_cpu_computes_a_vector_in_a_batch_as_alone(kind: int, multiply: Any) -> None:
    engine = RaggedOnnx(folded("bert", kind), multiply, threads=1)
    for one, row in zip(MIXED, engine.run(Batch.of(MIXED)), strict=True):
        (alone,) = engine.run(Batch.of([one]))
        assert relative_error(torch.from_numpy(row), torch.from_numpy(alone)) <= 1e-6


# An export takes seconds. The benchmark, which alone exports, pools by the mean.
PADDED = [*((kind, name) for kind in range(3) for name in ("openvino", "torch")), (1, "onnx_cpu")]


@pytest.mark.parametrize(("kind", "name"), first(PADDED, *PADDED[:-1]))
def test_padded_engine_does_not_pool_padding(kind: int, name: str, tmp_path: Path) -> None:
    model = network("bert", kind)
    engine: Engine
    match name:
        case "onnx_cpu":
            onnx.save(export(model), tmp_path / ONNX)
            engine = PaddedOnnx(tmp_path / ONNX, threads=1)
        case "openvino":
            engine = OpenVino(folded("bert", kind), threads=1, calls=1)
        case _:
            engine = PaddedTorch(model, torch.device("cpu"))
    off = max(engine.extra_tolerance, 1e-5) if name == "openvino" else FP32

    assert relative_error(rows_of(engine, MIXED), expected("bert", kind, MIXED)) <= off


@pytest.mark.parametrize("kind", [1, 2], ids=IDS[1:3])
def test_pooling_ignores_the_position_in_focus(kind: int) -> None:
    """A position stands for its whole sequence."""
    (one,) = MIXED[:1]
    several = dataclasses.replace(one, focus=np.array([0, 4, 8]))
    for engine in (Native(best(), folded("bert", kind)), RaggedOnnx(folded("bert", kind), in_fp32, threads=1)):
        (alone,), (row,) = engine.run(Batch.of([one])), engine.run(Batch.of([several]))
        assert row.tolist() == [alone[0].tolist()] * 3
