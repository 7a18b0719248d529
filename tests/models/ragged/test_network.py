"""The ragged network in torch: against the padded modules, and in static batches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from operator import itemgetter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlet_models.artifact import Embedding
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Product
from swiftlet_models.folding import fold
from swiftlet_models.heads import build, weights_of
from swiftlet_models.ragged import attention, in_torch, static
from swiftlet_models.ragged.attention import attend_by_sequence, attend_with_bias
from swiftlet_models.ragged.buckets import buckets, token_counts
from swiftlet_models.ragged.layout import Layout, Sizes
from swiftlet_models.ragged.network import Network
from swiftlet_models.ragged.products import in_fp8, in_int8
from swiftlet_models.ragged.ranking import rows_of
from swiftlet_models.ragged.static import StaticBatch, StaticRunner
from swiftlet_serve.engines.torch import PaddedTorch, RaggedTorch, is_out_of_memory
from swiftlet_serve.types import Batch
from swiftlet_serve.types.topk import Ranked, Scored
from tests.support.checkpoints import Task, randomise, relative_error
from tests.support.native_kernels import VARIANTS, encoding, run_folded, variant
from tests.support.networks import CONFIGS, NETWORKS, VOCABULARY, network
from tests.support.tiers import first_of_each

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
LENGTHS = (9, 1, 33, 2, 512, 40)
PADDED = ("mpnet", "deberta_v2")  # their attention depends on the longest sequence
STATIC = [(architecture, task) for architecture, task in NETWORKS if architecture not in PADDED]


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


def static_batch(own: Network, sizes: Sizes, device: torch.device = CPU, memory: object = None) -> StaticBatch:
    output = torch.empty(sizes.focus, own.outputs, dtype=own.dtype, device=device)
    return StaticBatch(own, device, sizes, 512, output, memory)


def computed(own: Network, batch: Batch) -> torch.Tensor:
    with torch.inference_mode():
        return own(Layout.of(batch))


@pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))
def test_ragged_network_computes_the_rows_of_the_padded_one(architecture, task):
    batch = Batch.of(sequences(task))
    expected = np.concatenate(PaddedTorch(network(architecture, task), CPU).run(batch))

    assert relative_error(computed(ragged(architecture, task), batch), torch.from_numpy(expected)) <= 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_ragged_network_computes_networks_without_positions_and_with_windows(name):
    given, batch = variant(name), Batch.of([encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(24, [23, 5], 3)])
    expected = torch.from_numpy(run_folded(given, batch))

    assert relative_error(computed(Network(given, CPU, torch.float32), batch), expected) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))
def test_a_row_does_not_depend_on_its_batch(architecture, task):
    own, batch = ragged(architecture, task), sequences(task)
    together = computed(own, Batch.of(batch))
    alone = torch.cat([computed(own, Batch.of([one])) for one in batch])

    assert relative_error(together, alone) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), first_of_each(STATIC, itemgetter(0)))
def test_static_batch_computes_the_same_and_its_empty_places_change_nothing(architecture, task):
    """Attention leaves NaN in the places that no token fills."""
    own, batch = ragged(architecture, task), Batch.of(sequences(task))
    static = static_batch(own, Sizes(800, 64, 800))
    with torch.inference_mode():
        found = static.run(batch)

    assert found.shape == (len(batch.focus), own.outputs)
    assert relative_error(found, computed(own, batch)) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), first_of_each(STATIC, itemgetter(0)))
def test_a_row_is_bit_equal_in_all_batches_of_a_bucket(architecture, task):
    batch = sequences(task)
    static = static_batch(ragged(architecture, task), Sizes(640, 16, 64))
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
        found = static_batch(own, Sizes(700, 16, 16)).run(batch)

    assert found.isfinite().all()
    assert relative_error(found, computed(own, batch)) <= 1e-5


@pytest.mark.parametrize(
    ("architecture", "task", "make_product", "tolerance"),
    first_of_each(
        [(*one, *product) for product in ((in_int8, 0.1), (in_fp8, 0.4)) for one in NETWORKS],
        lambda case: case[2] if case[2] is in_fp8 else case[0],
    ),
)
def test_products_of_8_bits_compute_nearly_the_same_rows(architecture, task, make_product, tolerance):
    """Whatever else is in the batch: every token has a scale of its own."""
    weights = {name: tensor.numpy() for name, tensor in network(architecture, task).state_dict().items()}
    own = Network(fold(architecture, CONFIGS[architecture], weights, 1), CPU, torch.float32, make_product)
    batch = sequences(task)
    together = computed(own, Batch.of(batch))
    alone = torch.cat([computed(own, Batch.of([one])) for one in batch])

    assert relative_error(together, computed(ragged(architecture, task), Batch.of(batch))) <= tolerance
    assert relative_error(together, alone) <= tolerance / 5  # a sum in another order may round to another integer


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
    runner = StaticRunner(own, CPU, buckets(128, 8, "causal_lm"), 512, 10**9)
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
    places = in_torch.locate(at.ends, at.focus_ends, at.focus, sizes.tokens)

    flat = [(b, s) for b, length in enumerate(lengths) for s in range(length)]
    for token, (b, s) in enumerate(flat):
        assert int(places.positions[token]) == s
        assert int(places.before[token]) == (token - 1 if s else sizes.tokens)
        assert int(places.after[token]) == (token + 1 if s + 1 < lengths[b] else sizes.tokens)
    assert at.ends.tolist() == batch.offsets.tolist() + [total] * more_rows
    read = len(batch.focus)
    found = [flat[token] for token in places.focus[:read].tolist()]
    assert found == list(zip(places.owner[:read].tolist(), batch.focus.tolist(), strict=True))
    for part in places.positions[total:], places.focus[read:], places.owner[read:]:
        assert not part.any()
    assert int(at.buffer.max()) < VOCABULARY  # nothing is left as it was


def test_attention_with_a_bias_of_zeros_is_attention():
    ends = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
    query, key, value = torch.randn(3, 14, 2, 8, generator=torch.Generator().manual_seed(0))
    table = torch.zeros(2, 2 * 20 - 1)
    for causal, window in product((False, True), (None, 3)):
        expected = attend_by_sequence(query, key, value, ends, ends, 8, causal=causal, window=window)
        found = attend_with_bias(query, key, value, ends, 8, table, causal=causal, window=window)

        assert relative_error(found, expected) <= 1e-6


def test_attention_of_a_sequence_without_queries_is_left_out():
    ends_q, ends_k = torch.tensor([0, 0, 2], dtype=torch.int32), torch.tensor([0, 4, 7], dtype=torch.int32)
    query, key = torch.randn(3, 2, 8), torch.randn(7, 2, 8)
    found = attend_by_sequence(query, key, key, ends_q, ends_k, 4)

    assert found[:2].isfinite().all()
    assert found[2].isnan().all()


def test_attention_refuses_a_sequence_that_its_kernel_would_cut():
    ends, x = torch.tensor([0, 4], dtype=torch.int32), torch.randn(4, 2, 8)
    with pytest.raises(ValueError, match="more than 3"):
        attend_by_sequence(x, x, x, ends, ends, 3)


@pytest.mark.parametrize("width", [8, 26])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 5), (True, 5)])
def test_kernel_of_attention_gets_what_it_accepts(width, causal, window, monkeypatch):
    """The conditions of flash attention in torch 2.13, and the reference in its place."""
    seen = []

    def kernel(out, query, key, value, ends_q, ends_k, max_q, max_k, *, scale, window_size, num_splits):
        assert all(one.shape[2] % 8 == 0 and one.stride(2) == 1 for one in (out, query, key, value))
        assert all(one.dtype == torch.int32 and one.is_contiguous() for one in (ends_q, ends_k))
        assert out.is_contiguous()
        assert (scale, num_splits) == (1.0, 1)
        before, after = window_size
        assert after in (0, before)
        reach = {"causal": after == 0, "window": None if before < 0 else 2 * before}
        out.copy_(attend_by_sequence(query, key, value, ends_q, ends_k, max_q, **reach))
        seen.append(max_k)

    monkeypatch.setattr(attention, "varlen_attn_out", kernel)
    ends = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
    query, key, value = (x.view(14, 2, width) for x in torch.randn(14, 3 * 2 * width).split(2 * width, 1))
    expected = attend_by_sequence(query, key, value, ends, ends, 8, causal=causal, window=window)
    found = attention.attend_with_kernel(query, key, value, ends, ends, 8, causal=causal, window=window)

    assert seen == [8]
    assert found.shape == expected.shape
    assert relative_error(found, expected) <= 1e-6


def reduced(kind: str, length: int, masks: int, top_k: int, chosen: int) -> Encoding:
    draw = np.random.default_rng(length)
    parts = vars(sequence(length, "fill-mask", length)) | {"focus": np.sort(draw.permutation(length)[:masks])}
    match kind:
        case "whole":
            return Encoding(**parts)
        case "ranked":
            return Ranked(**parts, top_k=top_k, candidates=np.zeros(0, np.int64))
        case "chosen":
            return Ranked(**parts, top_k=top_k, candidates=draw.permutation(61)[:chosen])
        case _:
            return Scored(**parts, targets=draw.integers(0, 61, len(parts["focus"])))


KINDS = st.sampled_from(["whole", "ranked", "chosen", "scored"])
NUMBERS = st.tuples(KINDS, st.integers(4, 30), st.integers(1, 4), st.integers(1, 9), st.integers(1, 12))


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_rows_are_reduced_as_on_the_host(numbers, seed):
    batch = Batch.of([reduced(*one) for one in numbers])
    outputs = np.random.default_rng(seed).normal(size=(len(batch.focus), 61)).astype(np.float32)

    found = rows_of(torch.from_numpy(outputs), batch)
    expected = batch.split_rows(outputs)

    assert [row.shape for row in found] == [row.shape for row in expected]
    for row, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, own, rtol=1e-6, atol=1e-6)
        assert row.flags.owndata or row.base.size == row.size  # no view of the outputs of all
    outputs[0, 5] = np.inf
    kind = numbers[0][0]
    assert kind == "whole" or np.isnan(rows_of(torch.from_numpy(outputs), batch)[0][0, 0])


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=8), NUMBERS)
def test_a_reduced_row_has_the_bits_of_the_row_alone(others, numbers):
    outputs = torch.from_numpy(np.random.default_rng(1).normal(size=(4 * 9, 61)).astype(np.float32))
    batch = Batch.of([reduced(*numbers), *(reduced(*one) for one in others)])
    alone = Batch.of([reduced(*numbers)])

    first, *_ = rows_of(outputs[: len(batch.focus)], batch)
    (own,) = rows_of(outputs[: len(alone.focus)], alone)
    assert first.tobytes() == own.tobytes()


class ScarceMemory:
    """A network on a device whose memory holds `most` tokens, of all calls whose tensors still live."""

    def __init__(self, own: Network, most: int) -> None:
        self.outputs, self.vocabulary, self.dtype, self.most = own.outputs, own.vocabulary, own.dtype, most
        self.calls: list[int] = []
        self.taken = 0
        self._own = own
        self.lock = threading.RLock()

    def __call__(self, at: Layout) -> torch.Tensor:
        tokens = at.sizes.tokens
        with self.lock:
            self.calls.append(tokens)
            memory = Taken(self, tokens)
            if self.taken > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        found = self._own(at)
        del memory
        return found


class Taken:
    """Memory that is taken as long as this object lives."""

    def __init__(self, owner: ScarceMemory, tokens: int) -> None:
        self._owner, self._tokens = owner, tokens
        with owner.lock:
            owner.taken += tokens

    def __del__(self) -> None:
        with self._owner.lock:
            self._owner.taken -= self._tokens


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
    assert first_calls <= 6  # the memory of the call that failed was free for its parts
    assert max(scarce.calls[first_calls:]) <= 120  # it has learned the limit
    assert "out of memory" in caplog.text


def test_engine_fails_a_sequence_that_the_memory_does_not_hold_alone():
    engine = RaggedTorch(ScarceMemory(ragged("bert", "classify"), 50), CPU, 64)  # type: ignore[arg-type]
    with pytest.raises(torch.OutOfMemoryError):
        engine.run(Batch.of(sequences("classify", (60,))))

    (row,) = engine.run(Batch.of(sequences("classify", (40,))))
    assert np.isfinite(row).all()


def empty_runners(scarce: ScarceMemory, count: int) -> list[StaticRunner]:
    return [StaticRunner(scarce, CPU, [], 512, 0) for _ in range(count)]  # type: ignore[arg-type]


def test_engine_computes_a_sequence_that_fits_alone_when_no_other_call_runs():
    own = ragged("bert", "classify")
    scarce = ScarceMemory(own, 60)
    engine = RaggedTorch(scarce, CPU, 64, empty_runners(scarce, 3))  # type: ignore[arg-type]
    batches = [Batch.of(sequences("classify", (length,))) for length in range(35, 61)]
    with ThreadPoolExecutor(4) as threads:
        found = [np.concatenate(rows) for rows in threads.map(engine.run, batches)]

    for rows, batch in zip(found, batches, strict=True):
        assert relative_error(torch.from_numpy(rows), computed(own, batch)) <= 1e-5


def test_engine_gives_up_its_static_batches_for_a_sequence_that_fits_without_them(caplog):
    own, batch = ragged("bert", "classify"), Batch.of(sequences("classify", (200,)))
    scarce = ScarceMemory(own, 300)
    runner = StaticRunner(scarce, CPU, buckets(64, 8, "classification"), 512, 10**9)  # type: ignore[arg-type]
    graphs = Taken(scarce, 150)
    monkeypatched_clear = runner.clear

    def clear() -> None:
        nonlocal graphs
        del graphs
        monkeypatched_clear()

    runner.clear = clear  # type: ignore[method-assign]
    engine = RaggedTorch(scarce, CPU, 512, [runner])  # type: ignore[arg-type]
    (row,) = engine.run(batch)

    assert runner.sizes == []
    assert "gives up its CUDA graphs" in caplog.text
    assert relative_error(torch.from_numpy(row), computed(own, batch)) <= 1e-5
    assert np.isfinite(np.concatenate(engine.run(Batch.of(sequences("classify", (3, 4)))))).all()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_memory_of_libraries_counts(message, expected):
    assert is_out_of_memory(RuntimeError(message)) == expected
    assert is_out_of_memory(torch.OutOfMemoryError("any"))


def test_padded_engine_splits_batches_that_the_memory_does_not_hold(monkeypatch):
    batch = Batch.of(sequences("classify", (60, 50, 40, 30, 20, 10)))
    engine = PaddedTorch(network("bert", "classify"), CPU)
    engine.longest = 64
    expected, forward, seen = np.concatenate(engine.run(batch)), engine._network.forward, []

    def scarce(ids, *rest):
        seen.append(ids.numel())
        if ids.numel() > 120:
            raise torch.OutOfMemoryError
        return forward(ids, *rest)

    monkeypatch.setattr(engine._network, "forward", scarce)
    assert relative_error(*(torch.from_numpy(rows) for rows in (np.concatenate(engine.run(batch)), expected))) <= 1e-5
    seen.clear()
    engine.run(batch)
    assert max(seen) <= 180  # what a batch is charged for counts


def test_runner_makes_the_largest_batches_that_fit_and_all_smaller_ones(monkeypatch, caplog):
    taken = 0
    own = ragged("bert", "classify")

    class Batch:
        """Takes memory for its tokens, beyond those of the largest that is there."""

        def __init__(self, _network, _device, sizes, _longest, output, _pool):
            nonlocal taken
            self._before = taken
            if sizes.tokens > 150:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            taken = max(taken, sizes.tokens)
            assert len(output) >= sizes.focus
            seen.append(output)

        def __del__(self):
            nonlocal taken
            taken = self._before

    seen = []
    monkeypatch.setattr(static, "StaticBatch", Batch)
    monkeypatch.setattr(static, "memory_taken", lambda _: 1000 + taken)
    wanted = list(buckets(256, 512, "causal_lm"))
    runner = StaticRunner(own, CPU, wanted, 512, 120)

    assert {one.tokens for one in runner.sizes} == {count for count in token_counts(256) if count <= 120}
    assert f"{len(wanted) - len(runner.sizes)} of {len(wanted)} sizes of batches have no CUDA graph" in caplog.text
    assert len({output.data_ptr() for output in seen[-len(runner.sizes) :]}) == 1  # they share it


def test_calls_at_once_have_buffers_of_their_own():
    own = ragged("mobilebert", "qa")
    sizes = list(buckets(128, 8, "token"))
    engine = RaggedTorch(own, CPU, 64, [StaticRunner(own, CPU, sizes, 512, 10**9) for _ in range(2)])
    batches = [Batch.of(sequences("qa", (length, 10))) for length in range(1, 61)]
    with ThreadPoolExecutor(4) as threads:
        found = [np.concatenate(rows) for rows in threads.map(engine.run, batches)]

    for rows, batch in zip(found, batches, strict=True):
        assert relative_error(torch.from_numpy(rows), computed(own, batch)) <= 1e-5


def test_engine_computes_a_batch_without_a_bucket_as_it_is():
    own = ragged("bert", "classify")
    runner = StaticRunner(own, CPU, buckets(32, 8, "classification"), 512, 10**9)
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
        static = static_batch(own, sizes, CUDA, torch.cuda.graph_pool_handle())
        together = static.run(Batch.of(batch)).float().cpu()
        alone = torch.cat([static.run(Batch.of([one])).float().cpu() for one in batch])

    assert together.numpy().tobytes() == alone.numpy().tobytes()
    assert relative_error(together, computed(ragged(architecture, task), Batch.of(batch))) <= 0.1


@on_cuda
@pytest.mark.parametrize(("architecture", "task"), STATIC)
def test_graphs_that_run_at_once_compute_the_bits_of_one_alone(architecture, task):
    own, sizes = ragged(architecture, task, CUDA), list(buckets(1024, 16, "token"))
    with torch.inference_mode():  # as the engine does: torch's state of random numbers remembers the mode of a capture
        runners = [StaticRunner(own, CUDA, sizes, 512, 10**10) for _ in range(2)]
    batches = [Batch.of(sequences(task, (length, 100, 300))) for length in range(1, 101)]
    alone = RaggedTorch(own, CUDA, 512, runners[:1])
    expected = [np.concatenate(alone.run(batch)) for batch in batches]
    both = RaggedTorch(own, CUDA, 512, runners)
    with ThreadPoolExecutor(2) as threads:
        found = [np.concatenate(rows) for rows in threads.map(both.run, batches)]

    assert [rows.tobytes() for rows in found] == [rows.tobytes() for rows in expected]


def test_rows_of_distances_are_exact_in_half_precision():
    """bf16 has 8 significant bits, and the table here 800 rows."""
    config = CONFIGS["deberta_v2"] | {"position_buckets": 400}
    model = build("deberta_v2", config, "token", 2)
    randomise(model)
    own = fold("deberta_v2", config, weights_of(model), 1)
    batch = Batch.of(sequences("qa"))
    rows = [computed(Network(own, CPU, dtype), batch).float() for dtype in (torch.float32, torch.bfloat16)]

    assert relative_error(rows[1], rows[0]) <= 0.1
