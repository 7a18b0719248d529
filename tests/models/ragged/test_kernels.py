"""The Triton kernels, in Triton's interpreter and in its compiler for GPUs. Neither needs a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton

from swiftlet_models.ragged import fusion, in_torch, kernels, products, rounded, scaled_kernels
from swiftlet_models.ragged.attention import attend_by_sequence
from swiftlet_models.ragged.feed_forward import FeedForward
from swiftlet_models.ragged.layout import Layout
from swiftlet_serve.types import Batch
from tests.models.ragged.test_network import CPU, CUDA, computed, on_cuda, ragged, sequences
from tests.support.checkpoints import relative_error
from tests.support.networks import NETWORKS
from tests.support.tiers import first

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a GPU, for which Triton compiles: see test_network.py"
)
LENGTHS = (9, 1, 24)
MULTIPLY = ("_attend", "_feed_forward", "_multiply")
FUSED = ("locate", "layer_norm", "add_embeddings", "window", "attend", "feed_forward")


def random(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


class Counted:
    """Kernels that count their calls."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = dict.fromkeys(FUSED, 0)

    def __getattr__(self, name: str):
        self.calls[name] += 1
        return getattr(kernels, name)


@interpreted
@pytest.mark.parametrize(("architecture", "task"), first(NETWORKS, ("bert", "classify"), ("modernbert", "classify")))
def test_networks_compute_the_same_with_triton(architecture, task, monkeypatch):
    batch, network, found = Batch.of(sequences(task, LENGTHS)), ragged(architecture, task), Counted()
    expected = computed(network, batch)
    monkeypatch.setattr(network, "kernels", found)

    assert relative_error(computed(network, batch), expected) <= 1e-5
    assert found.calls["add_embeddings"] == (architecture != "modernbert")
    # The others have a position bias, or no layer but the last one.
    assert (found.calls["attend"] > 0) == (architecture in ("albert", "mobilebert", "gpt2", "modernbert"))
    assert (found.calls["feed_forward"] > 0) == (found.calls["window"] > 0) == (architecture == "mobilebert")
    assert (found.calls["layer_norm"] > 0) == (architecture != "mobilebert" or task == "fill-mask")


@interpreted
@pytest.mark.parametrize("lengths", [(1,), (9, 0, 1, 130, 24, 0, 0), (1,) * 70])
def test_places_of_tokens_and_of_positions_in_focus(lengths):
    """Sequences in any number, empty ones, those with no position or several, and places beyond the last one."""
    counts = [(i % 3) * (length > 0) for i, length in enumerate(lengths)]
    focus = [i % length for length, count in zip(lengths, counts, strict=True) for i in range(count)]
    ends, focus_ends = (torch.tensor([0, *sizes]).cumsum(0).to(torch.int32) for sizes in (lengths, counts))
    args = ends, focus_ends, torch.tensor([*focus, 7, 7, 7], dtype=torch.int32), sum(lengths) + 5

    for found, expected in zip(kernels.locate(*args), in_torch.locate(*args), strict=True):
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()


@interpreted
@pytest.mark.parametrize("width", [1, 48, 300])
@pytest.mark.parametrize("has_residual", [False, True])
def test_layer_norm_of_any_width(width, has_residual):
    """The residual may lie in a wider matrix, as that of a layer with a bottleneck does."""
    x, weight, bias = 3 + random(5, width), random(width), random(1, width)[0]
    args = random(5, 3 * width)[:, width : 2 * width] if has_residual else None, weight, bias, 1e-3

    assert torch.allclose(kernels.layer_norm(x, *args), in_torch.layer_norm(x, *args), rtol=1e-4, atol=1e-5)


@interpreted
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "width"), first([(4, 32), (3, 64), (2, 24)], (2, 24)))
def test_attention_over_sequences_of_any_length(heads, width, causal):
    """Sequences longer than a block, empty ones, and tokens beyond the last one."""
    lengths = 9, 0, 1, 130, 24, 300, 0
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    tokens = sum(lengths)
    parts = random(tokens + 5, 4 * heads * width).split(heads * width, 1)
    query, key, value = (part.view(-1, heads, width) for part in (parts[0] / width**0.5, *parts[2:]))
    expected = attend_by_sequence(query, key, value, ends, ends, 300, causal=causal)

    found = kernels.attend(query, key, value, ends, 300, causal=causal)

    assert relative_error(found[:tokens], expected[:tokens]) <= 1e-5


@interpreted
@pytest.mark.parametrize("tokens", [1, 16, 37])
@pytest.mark.parametrize("form", dict.fromkeys((*kernels.FORMS.values(), *kernels.OLDER_FORMS.values())))
def test_layer_of_released_width(tokens, form, monkeypatch):
    c, i, h = 128, 512, 512
    layer = FeedForward(
        (random(c, c) / 11, random(c), random(1, c)[0]),
        (random(4, c, i) / 11, random(4, i)),
        (random(4, i, c) / 23, random(4, c), random(1, 4, c)[0]),
        (random(c, h) / 11, random(h), random(1, h)[0]),
    )
    parts, entered = random(tokens, 4 * c), random(tokens, h)
    attended, residual = random(tokens, c), parts[:, c : 2 * c]
    expected = in_torch.feed_forward(layer, attended, residual, entered)
    monkeypatch.setattr(in_torch, "feed_forward", None)  # the kernel must not leave it to torch
    monkeypatch.setattr(kernels, "FORMS", {1: form})

    assert relative_error(kernels.feed_forward(layer, attended, residual, entered), expected) <= 1e-5


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((128, 512, 512), True),
        ((16, 16, 16), True),
        ((32, 96, 64), False),
        ((32, 128, 96), False),
        ((96, 512, 512), False),
        ((256, 512, 512), False),
        ((8, 64, 64), False),
    ],
)
def test_sizes_that_have_blocks(sizes, expected):
    assert kernels.has_blocks(*sizes) == expected


@interpreted
def test_sizes_without_blocks_are_computed_in_torch():
    c, i, h = 24, 40, 56
    layer = FeedForward(
        (random(c, c), random(c), random(c)),
        (random(1, c, i), random(1, i)),
        (random(1, i, c), random(1, c), random(1, c)),
        (random(c, h), random(h), random(h)),
    )
    args = layer, random(3, c), random(3, c), random(3, h)
    assert torch.equal(kernels.feed_forward(*args), in_torch.feed_forward(*args))


class TestUse:
    """The choice of the kernels, with a device that calls itself CUDA and computes on the CPU."""

    @pytest.fixture
    def network(self, monkeypatch):
        found = ragged("mobilebert", "classify")
        monkeypatch.setattr(found, "kernels", in_torch)
        monkeypatch.setattr(Layout, "to", lambda layout, _: layout)
        return found

    @interpreted
    def test_triton_is_used_if_it_computes_the_same(self, network, monkeypatch):
        forms = zip((1, 28), kernels.FORMS.values(), strict=True)  # fewer tokens: the interpreter is slow
        monkeypatch.setattr(kernels, "FORMS", dict(forms))
        assert fusion.use_triton(network, torch.device("cuda"))
        assert network.kernels is kernels

    def test_torch_is_used_if_one_form_of_a_kernel_fails(self, network, monkeypatch, caplog):
        """As where the device has too little shared memory for large blocks."""
        tokens = []

        def feed_forward(layer, attended, residual, entered):
            tokens.append(len(entered))
            assert kernels.form_of(len(entered), CPU).rows < 64, "out of resource: shared memory"
            return in_torch.feed_forward(layer, attended, residual, entered)

        fused = {name: getattr(in_torch, name) for name in FUSED}
        limited = SimpleNamespace(**{**fused, "feed_forward": feed_forward, "FORMS": (1, 2049)})
        monkeypatch.setattr(fusion, "_triton_kernels", lambda: limited)
        assert not fusion.use_triton(network, torch.device("cuda"))
        assert network.kernels is in_torch
        assert max(tokens) >= 2049
        assert "shared memory" in caplog.text

    def test_torch_is_used_on_the_cpu(self, network):
        assert not fusion.use_triton(network, CPU)
        assert network.kernels is in_torch

    @pytest.mark.parametrize(
        ("layer", "message"),
        [
            (lambda *_: 1 / 0, "are not used"),
            (lambda *args: 2 * in_torch.feed_forward(*args), "outputs differ by"),
            (lambda *args: torch.nan * in_torch.feed_forward(*args), "outputs differ by nan"),
        ],
    )
    def test_torch_is_used_if_triton_fails(self, layer, message, network, monkeypatch, caplog):
        fused = {name: getattr(in_torch, name) for name in FUSED}
        broken = SimpleNamespace(**{**fused, "feed_forward": layer, "FORMS": (1,)})
        monkeypatch.setattr(fusion, "_triton_kernels", lambda: broken)
        assert not fusion.use_triton(network, torch.device("cuda"))
        assert network.kernels is in_torch
        assert message in caplog.text

    def test_torch_is_used_without_the_package(self, network, monkeypatch, caplog):
        monkeypatch.setitem(sys.modules, "swiftlet_models.ragged.kernels", None)
        monkeypatch.delattr("swiftlet_models.ragged.kernels")
        assert not fusion.use_triton(network, torch.device("cuda"))
        assert "triton is not installed" in caplog.text


@pytest.mark.parametrize("is_there", [False, True])
def test_launcher_of_the_image_is_used_in_place_of_a_compiler(is_there, tmp_path, monkeypatch):
    launcher = tmp_path / "launcher.so"
    if is_there:
        launcher.write_bytes(b"module")
    monkeypatch.setattr(fusion, "LAUNCHER", launcher)
    monkeypatch.setattr(triton.knobs.build, "impl", None)

    assert fusion._triton_kernels() is kernels
    found = triton.knobs.build.impl
    assert (found is not None and found("cuda_utils", "driver.c", "/tmp", [], [], [])) == (
        str(launcher) if is_there else False
    )


@on_cuda
@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_kernels_of_a_gpu_compute_nearly_the_same(architecture, task):
    assert fusion.use_triton(ragged(architecture, task, CUDA), CUDA)


@on_cuda
@pytest.mark.parametrize("small", rounded.LARGEST)
@pytest.mark.parametrize("rows", [1, scaled_kernels.MANY_TOKENS])
def test_products_of_8_bits_on_a_gpu_compute_nearly_the_same(rows, small):
    parts = scaled_kernels.quantise, scaled_kernels.multiply
    assert products.difference(parts, rows, CUDA, small) <= products.TOLERANCE


@pytest.mark.exhaustive
@pytest.mark.parametrize(("capability", "shared_kib"), [(80, 163), (90, 227)])
def test_kernels_compile_for_gpus(capability, shared_kib):
    """An A100 and an H100, with the shared memory that a program may have there."""
    command = [sys.executable, "-m", "tests.support.triton_compiler", str(capability)]
    result = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=True
    )
    compiled = json.loads(result.stdout)
    assert {one["name"] for one in compiled} == {
        "_locate",
        "_layer_norm",
        "_add_embeddings",
        "_window",
        "_attend",
        "_feed_forward",
        *(("_quantise", "_multiply") if capability >= 90 else ()),
    }
    for one in compiled:
        assert one["shared"] <= shared_kib * 1024, one
        assert one["spilled"] == 0, one
    assert all(one["multiplies_in_tensor_cores"] for one in compiled if one["name"] in MULTIPLY)
