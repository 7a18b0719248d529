"""Sparse and multi-vector outputs on every engine, and tokens that nothing attends to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from itertools import cycle, product

import numpy as np
import pytest
import torch

from swiftlet_models.artifact import Embedding, MultiVector, Sparse
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded
from swiftlet_models.folding import fold
from swiftlet_models.graphs.ragged import in_fp32
from swiftlet_models.heads import Model, build
from swiftlet_models.ragged.network import Network
from swiftlet_serve.engines.native import Native
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx
from swiftlet_serve.engines.openvino import OpenVino
from swiftlet_serve.engines.torch import PaddedTorch, RaggedTorch
from swiftlet_serve.types import Batch, Engine
from swiftlet_serve.types.codec import pack_sequences, unpack_batch, unpack_sequences
from tests.support.checkpoints import randomise, relative_error
from tests.support.native_kernels import CONFIGS, VOCABULARY, best, encoding, rows_of, run_folded, torch_rows, weights
from tests.support.tiers import first

CPU = torch.device("cpu")
FP32, INT8 = 3e-6, 0.07
WIDTH = 37  # no multiple of a vector
KINDS = {
    "splade": Embedding("max", vector=False, sparse=Sparse("vocabulary")),
    "bge-m3": Embedding("cls", sparse=Sparse("tokens", 0), multi_vector=MultiVector(WIDTH)),
    "colbert": Embedding("cls", vector=False, multi_vector=MultiVector(WIDTH)),
}
ENGINES: dict[str, tuple[Callable[[Folded], Engine], float]] = {
    "onnx_cpu": (lambda network: RaggedOnnx(network, in_fp32, threads=1), FP32),
    "native": (lambda network: Native(best(), network), INT8),
    "torch": (lambda network: RaggedTorch(Network(network, CPU, torch.float32), CPU, 512), FP32),
}
ARCHITECTURES = ("bert", "distilbert", "modernbert", "mpnet", "deberta_v2")


@cache
def network(architecture: str, kind: str) -> Model:
    about, hidden = KINDS[kind], CONFIGS[architecture].get("hidden_size", CONFIGS[architecture].get("dim"))
    width = {"splade": VOCABULARY, "bge-m3": hidden + 1 + WIDTH, "colbert": WIDTH}[kind]
    model = build(architecture, CONFIGS[architecture], "embedding", width, about)
    randomise(model)
    return model.eval()


def folded(architecture: str, kind: str) -> Folded:
    return fold(architecture, CONFIGS[architecture], weights(network(architecture, kind)), embedding=KINDS[kind])


def sequences(kind: str) -> list[Encoding]:
    """Sequences of different lengths. The head of SPLADE reads all tokens for one position."""
    return [encoding(n, [0] if kind == "splade" else range(0, n, 1 + n % 2), n) for n in (9, 1, 33, 40, 2)]


@pytest.mark.parametrize(
    ("architecture", "kind", "engine"),
    first(
        product(ARCHITECTURES, KINDS, ENGINES),
        *((*one, engine) for one in zip(ARCHITECTURES, cycle(KINDS), strict=False) for engine in ENGINES),
    ),
)
def test_engine_computes_the_outputs_of_all_forms_at_once(architecture: str, kind: str, engine: str) -> None:
    create, off = ENGINES[engine]
    batch = sequences(kind)
    expected = torch.from_numpy(torch_rows(network(architecture, kind), Batch.of(batch)))
    assert relative_error(rows_of(create(folded(architecture, kind)), batch), expected) <= off


@pytest.mark.parametrize("kind", KINDS)
def test_openvino_and_padded_torch_compute_the_same(kind: str) -> None:
    batch = sequences(kind)
    expected = torch.from_numpy(torch_rows(network("bert", kind), Batch.of(batch)))
    engine = OpenVino(folded("bert", kind), threads=1, calls=1)
    assert relative_error(rows_of(engine, batch), expected) <= max(engine.extra_tolerance, 1e-5)
    assert relative_error(rows_of(PaddedTorch(network("bert", kind), CPU), batch), expected) <= FP32


@pytest.mark.parametrize("kind", KINDS)
def test_native_computes_a_row_in_a_batch_as_alone_to_the_bit(kind: str) -> None:
    engine, batch = Native(best(), folded("bert", kind)), sequences(kind)
    for one, row in zip(batch, engine.run(Batch.of(batch)), strict=True):
        assert row.tobytes() == engine.run(Batch.of([one]))[0].tobytes()


@pytest.mark.parametrize(
    ("architecture", "engine"),
    first(
        product([name for name in ARCHITECTURES if name != "modernbert"], ENGINES),
        *product(["bert", "mpnet"], ENGINES),
        ("deberta_v2", "native"),
    ),
)
def test_no_token_attends_to_those_behind_the_attended_ones(architecture: str, engine: str) -> None:
    """The sequences before the masks have the rows that they have without masks, and masks have rows as well."""
    create, off = ENGINES[engine]
    network_, plain = folded(architecture, "colbert"), encoding(7, range(7), 3)
    masks = np.full(9, 5)
    filled = dataclasses.replace(
        plain,
        input_ids=np.concatenate([plain.input_ids, masks]),
        token_type_ids=np.concatenate([plain.token_type_ids, 0 * masks]),
        focus=np.arange(16),
        attended=7,
    )
    batch = [encoding(12, range(12), 4), filled, plain]
    running = create(network_)
    _, row, alone = running.run(Batch.of(batch))
    expected = run_folded(network_, Batch.of([filled]))

    assert relative_error(torch.from_numpy(row), torch.from_numpy(expected)) <= off
    if engine == "native":
        assert row[:7].tobytes() == alone.tobytes()
        assert row.tobytes() == running.run(Batch.of([filled]))[0].tobytes()


def test_attended_tokens_survive_a_message() -> None:
    plain = encoding(7, [0], 3)
    several = [plain, dataclasses.replace(plain, attended=4)]
    body = pack_sequences(several)
    assert [one.attended for one in unpack_sequences(memoryview(body), 2, 0)] == [None, 4]
    assert unpack_batch(bytearray(body), 2, 0).attended.tolist() == [7, 4]
    with pytest.raises(ValueError, match="attends"):
        unpack_sequences(memoryview(pack_sequences([dataclasses.replace(plain, attended=8)])), 1, 0)
