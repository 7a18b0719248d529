"""The ragged network in torch: against the padded modules, and in static batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlet_serve.models.artifact import Embedding
from swiftlet_serve.models.folding import Product, fold
from swiftlet_serve.models.ragged.attention import attend_by_sequence, attend_with_bias
from swiftlet_serve.models.ragged.buckets import buckets
from swiftlet_serve.models.ragged.layout import Layout, Sizes
from swiftlet_serve.models.ragged.network import Network
from swiftlet_serve.models.ragged.products import in_int8
from swiftlet_serve.models.ragged.ranking import rows_of
from swiftlet_serve.models.ragged.static import StaticBatch, StaticRunner
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.engines.torch import PaddedTorch, RaggedTorch
from swiftlet_serve.service.topk import Ranked, Scored
from swiftlet_serve.service.types import Batch
from tests.support.checkpoints import Task, relative_error
from tests.support.networks import CONFIGS, NETWORKS, VOCABULARY, network

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
LENGTHS = (9, 1, 33, 2, 512, 40)
STATIC = [(architecture, task) for architecture, task in NETWORKS if architecture != "mpnet"]


@cache
def ragged(architecture: str, task: Task, device: torch.device = CPU) -> Network:
    weights = {name: tensor.numpy() for name, tensor in network(architecture, task).state_dict().items()}
    folded = fold(architecture, CONFIGS[architecture], weights, 1)
    return Network(folded, device, torch.float32 if device is CPU else torch.bfloat16)


def sequence(length: int, task: Task, seed: int) -> Encoding:
    """Returns random tokens. Classifiers read the first one, and other heads a few."""
    draw = np.random.default_rng(seed)
    focus = [0] if task == "classify" else sorted({0, length // 2, length - 1})
    types = np.zeros(length, np.int64)
    types[length // 2 :] = 1
    return Encoding(draw.integers(0, VOCABULARY, length), types, np.array(focus))


def sequences(task: Task, lengths: tuple[int, ...] = LENGTHS) -> list[Encoding]:
    return [sequence(length, task, seed) for seed, length in enumerate(lengths)]


def computed(own: Network, batch: Batch) -> torch.Tensor:
    with torch.inference_mode():
        return own(Layout.of(batch))


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_ragged_network_computes_the_rows_of_the_padded_one(architecture, task):
    batch = Batch.of(sequences(task))
    expected = np.concatenate(PaddedTorch(network(architecture, task), CPU).run(batch))

    assert relative_error(computed(ragged(architecture, task), batch), torch.from_numpy(expected)) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_a_row_does_not_depend_on_its_batch(architecture, task):
    own, batch = ragged(architecture, task), sequences(task)
    together = computed(own, Batch.of(batch))
    alone = torch.cat([computed(own, Batch.of([one])) for one in batch])

    assert relative_error(together, alone) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), STATIC)
def test_static_batch_computes_the_same_and_its_empty_places_change_nothing(architecture, task):
    """Attention leaves NaN in the places that no token fills."""
    own, batch = ragged(architecture, task), Batch.of(sequences(task))
    static = StaticBatch(own, CPU, Sizes(800, 64, 800), 512, None)
    with torch.inference_mode():
        found = static.run(batch)

    assert found.shape == (len(batch.focus), own.outputs)
    assert relative_error(found, computed(own, batch)) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), STATIC)
def test_a_row_is_bit_equal_in_all_batches_of_a_bucket(architecture, task):
    batch = sequences(task)
    static = StaticBatch(ragged(architecture, task), CPU, Sizes(640, 16, 64), 512, None)
    with torch.inference_mode():
        together = static.run(Batch.of(batch)).clone()
        alone = torch.cat([static.run(Batch.of([one])).clone() for one in batch])

    assert together.numpy().tobytes() == alone.numpy().tobytes()


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_static_batch_pools_real_tokens_only(pooling):
    encoder, batch = network("bert", "classify").encoder, Batch.of(sequences("classify"))
    weights = {name: tensor.numpy() for name, tensor in encoder.state_dict(prefix="encoder.").items()}
    own = Network(fold("bert", CONFIGS["bert"], weights, 1, Embedding(pooling)), CPU, torch.float32)
    with torch.inference_mode():
        found = StaticBatch(own, CPU, Sizes(700, 16, 16), 512, None).run(batch)

    assert found.isfinite().all()
    assert relative_error(found, computed(own, batch)) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_int8_products_compute_nearly_the_same_rows(architecture, task):
    """Whatever else is in the batch: every token has a scale of its own."""
    weights = {name: tensor.numpy() for name, tensor in network(architecture, task).state_dict().items()}
    own = Network(fold(architecture, CONFIGS[architecture], weights, 1), CPU, torch.float32, in_int8)
    batch = sequences(task)
    together = computed(own, Batch.of(batch))
    alone = torch.cat([computed(own, Batch.of([one])) for one in batch])

    assert relative_error(together, computed(ragged(architecture, task), Batch.of(batch))) <= 0.1
    assert relative_error(together, alone) <= 0.02  # a sum in another order may round to another integer


def test_int8_product_is_exact_for_small_integers():
    draw = np.random.default_rng(1)
    weight, bias = draw.integers(-127, 128, (16, 24)), draw.integers(-9, 10, 16)
    weight[:, 0] = 127  # so that the scale of every output is 1
    x = torch.from_numpy(draw.integers(-127, 128, (5, 24))).float()
    x[:, 1] = 127
    multiply = in_int8(Product(weight.astype(np.float32), bias.astype(np.float32)), CPU, torch.float32)

    assert torch.equal(multiply(x), x @ torch.from_numpy(weight).float().t() + torch.from_numpy(bias))
    assert not multiply(torch.zeros(3, 24)).isnan().any()


def test_runner_takes_the_smallest_static_batch_and_refuses_larger_ones():
    own = ragged("bert", "classify")
    runner = StaticRunner(own, CPU, buckets(128, 8, every_token=False), 512, 10**9)
    small, large = sequences("classify", (9, 20)), sequences("classify", (100, 100))
    with torch.inference_mode():
        found = runner.run(Batch.of(small))

    assert len(runner.sizes) == 2 * len({one.tokens for one in runner.sizes})
    assert found is not None
    assert relative_error(found, computed(own, Batch.of(small))) <= 1e-5
    assert runner.run(Batch.of(large)) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 20), st.integers(0, 5))
def test_layout_finds_the_neighbours_and_owners_of_tokens(lengths, more_tokens, more_rows):
    batch = Batch.of(sequences("qa", tuple(lengths)))
    total = sum(lengths)
    sizes = Sizes(total + more_tokens, len(lengths) + more_rows, len(batch.focus) + more_tokens)
    at = Layout(torch.full((sizes.numbers,), 10**6, dtype=torch.int32), sizes, 512)
    at.write(batch)

    flat = [(b, s) for b, length in enumerate(lengths) for s in range(length)]
    for token, (b, s) in enumerate(flat):
        assert int(at.positions[token]) == s
        assert int(at.before[token]) == (token - 1 if s else sizes.tokens)
        assert int(at.after[token]) == (token + 1 if s + 1 < lengths[b] else sizes.tokens)
    assert at.ends.tolist() == batch.offsets.tolist() + [total] * more_rows
    owners = [flat[token][0] for token in at.focus[: len(batch.focus)].tolist()]
    assert owners == at.owner[: len(batch.focus)].tolist()
    assert int(at.buffer.max()) < VOCABULARY  # nothing is left as it was


def test_attention_with_a_bias_of_zeros_is_attention():
    ends = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
    query, key, value = torch.randn(3, 14, 2, 8, generator=torch.Generator().manual_seed(0))
    table = torch.zeros(2, 2 * 20 - 1)
    for causal in (False, True):
        expected = attend_by_sequence(query, key, value, ends, ends, causal=causal)
        found = attend_with_bias(query, key, value, ends, 8, table, causal=causal)

        assert relative_error(found, expected) <= 1e-6


def test_attention_of_a_sequence_without_queries_is_left_out():
    ends_q, ends_k = torch.tensor([0, 0, 2], dtype=torch.int32), torch.tensor([0, 4, 7], dtype=torch.int32)
    query, key = torch.randn(3, 2, 8), torch.randn(7, 2, 8)
    found = attend_by_sequence(query, key, key, ends_q, ends_k)

    assert found[:2].isfinite().all()
    assert found[2].isnan().all()


def test_rows_are_reduced_as_on_the_host():
    draw = np.random.default_rng(3)
    parts = [sequence(length, "fill-mask", length) for length in (9, 12, 7, 5)]
    plain, ranked, chosen, scored = (vars(one) for one in parts)
    batch = Batch.of(
        [
            Encoding(**plain),
            Ranked(**ranked, top_k=7, candidates=np.zeros(0, np.int64)),
            Ranked(**chosen, top_k=9, candidates=np.array([5, 17, 3, 60])),
            Scored(**scored, targets=np.array([1, 60, 7])),
        ]
    )
    outputs = draw.normal(size=(len(batch.focus), 61)).astype(np.float32)
    outputs[3, 5] = np.inf  # the first position of the ranked sequence

    found = rows_of(torch.from_numpy(outputs), batch)
    expected = batch.split_rows(outputs)

    assert [row.shape for row in found] == [row.shape for row in expected]
    assert np.isnan(found[1][0, 0])
    for row, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, own, rtol=1e-6, atol=1e-6)


class ScarceMemory:
    """A network on a device whose memory holds `most` tokens."""

    def __init__(self, own: Network, most: int) -> None:
        self.outputs, self.most = own.outputs, most
        self.calls: list[int] = []
        self._own = own

    def __call__(self, at: Layout) -> torch.Tensor:
        self.calls.append(at.sizes.tokens)
        if at.sizes.tokens > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self._own(at)


def test_engine_splits_batches_that_the_memory_does_not_hold(caplog):
    batch = sequences("classify", (60, 50, 40, 30, 20, 10))
    scarce = ScarceMemory(ragged("bert", "classify"), 120)
    engine = RaggedTorch(scarce, CPU, 64)  # type: ignore[arg-type]
    found = np.concatenate(engine.run(Batch.of(batch)))
    first_calls = len(scarce.calls)
    again = np.concatenate(engine.run(Batch.of(batch)))

    expected = computed(ragged("bert", "classify"), Batch.of(batch))
    assert relative_error(torch.from_numpy(found), expected) <= 1e-5
    assert relative_error(torch.from_numpy(again), expected) <= 1e-5
    assert max(scarce.calls[:first_calls]) == 210
    assert max(scarce.calls[first_calls:]) <= 120  # it has learned the limit
    assert "out of memory" in caplog.text


def test_engine_fails_a_sequence_that_the_memory_does_not_hold_alone():
    engine = RaggedTorch(ScarceMemory(ragged("bert", "classify"), 50), CPU, 64)  # type: ignore[arg-type]
    with pytest.raises(torch.OutOfMemoryError):
        engine.run(Batch.of(sequences("classify", (60,))))

    (row,) = engine.run(Batch.of(sequences("classify", (40,))))
    assert np.isfinite(row).all()


def test_calls_at_once_have_buffers_of_their_own():
    own = ragged("mobilebert", "qa")
    sizes = list(buckets(128, 8, every_token=True))
    engine = RaggedTorch(own, CPU, 64, [StaticRunner(own, CPU, sizes, 512, 10**9) for _ in range(2)])
    batches = [Batch.of(sequences("qa", (length, 10))) for length in range(1, 61)]
    with ThreadPoolExecutor(4) as threads:
        found = [np.concatenate(rows) for rows in threads.map(engine.run, batches)]

    for rows, batch in zip(found, batches, strict=True):
        assert relative_error(torch.from_numpy(rows), computed(own, batch)) <= 1e-5


def test_engine_computes_a_batch_without_a_bucket_as_it_is():
    own = ragged("bert", "classify")
    runner = StaticRunner(own, CPU, buckets(32, 8, every_token=False), 512, 10**9)
    batch = Batch.of(sequences("classify", (100, 100)))

    found = np.concatenate(RaggedTorch(own, CPU, 512, [runner]).run(batch))
    assert relative_error(torch.from_numpy(found), computed(own, batch)) <= 1e-5


@on_cuda
@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_network_on_cuda_computes_nearly_the_rows_of_the_cpu(architecture, task):
    batch = Batch.of(sequences(task))
    with torch.inference_mode():
        found = ragged(architecture, task, CUDA)(Layout.of(batch).to(CUDA)).float().cpu()

    assert relative_error(found, computed(ragged(architecture, task), batch)) <= 0.1


@on_cuda
@pytest.mark.parametrize(("architecture", "task"), STATIC)
def test_graph_computes_the_bits_of_the_network_whatever_else_is_in_its_batch(architecture, task):
    batch, sizes = sequences(task), Sizes(640, 16, 64)
    own = ragged(architecture, task, CUDA)
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        static = StaticBatch(own, CUDA, sizes, 512, torch.cuda.graph_pool_handle())
        together = static.run(Batch.of(batch)).float().cpu()
        alone = torch.cat([static.run(Batch.of([one])).float().cpu() for one in batch])

    assert together.numpy().tobytes() == alone.numpy().tobytes()
    assert relative_error(together, computed(ragged(architecture, task), Batch.of(batch))) <= 0.1


@on_cuda
@pytest.mark.parametrize(("architecture", "task"), STATIC)
def test_graphs_that_run_at_once_compute_the_bits_of_one_alone(architecture, task):
    own, sizes = ragged(architecture, task, CUDA), list(buckets(1024, 16, every_token=True))
    runners = [StaticRunner(own, CUDA, sizes, 512, 10**10) for _ in range(2)]
    batches = [Batch.of(sequences(task, (length, 100, 300))) for length in range(1, 101)]
    alone = RaggedTorch(own, CUDA, 512, runners[:1])
    expected = [np.concatenate(alone.run(batch)) for batch in batches]
    both = RaggedTorch(own, CUDA, 512, runners)
    with ThreadPoolExecutor(2) as threads:
        found = [np.concatenate(rows) for rows in threads.map(both.run, batches)]

    assert [rows.tobytes() for rows in found] == [rows.tobytes() for rows in expected]
