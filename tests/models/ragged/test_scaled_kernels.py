"""The kernels of 8-bit products, in Triton's interpreter and its compiler."""

from __future__ import annotations

import os

import pytest
import torch

from swiftlet_models.ragged import products, rounded, scaled_kernels
from tests.support.checkpoints import relative_error

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="there is a GPU: see test_kernels.py")
BOTH = (torch.int8, rounded.FP8)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("small", BOTH)
def test_rows_are_scaled_and_rounded_as_in_torch(small):
    """Also rows of zeros, halves between two integers, and rows that lie in a wider matrix."""
    x = random(6, 3 * 48)[:, 48:96]
    x[0], x[1] = 0.0, torch.arange(48) / 2
    x[1, -1] = 127.0

    (found, step), (expected, expected_step) = (part.quantise(x, small) for part in (scaled_kernels, rounded))

    assert torch.equal(step, expected_step)
    found, expected = found.float(), expected.float()
    # The interpreter of Triton 3.7 halves what it rounds up to a power of two in FP8. The compiler does not.
    is_rounded_up = (expected.abs().log2() % 1 == 0) & (expected.abs() > (x / step[:, None]).abs())
    assert torch.equal(found, expected.where(~is_rounded_up, found))
    assert small == rounded.FP8 or torch.equal(found, expected)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_new", "silu"])
@pytest.mark.parametrize("small", BOTH)
@pytest.mark.parametrize("form", ["FEW", "MANY"])
def test_products_of_any_size(form, small, activation, monkeypatch):
    """Blocks that reach beyond the rows, the columns and the depth, and several groups of them."""
    rows, depth, columns = 9 * 16 + 5, 144, 80
    block = getattr(scaled_kernels, form)._replace(rows=16, columns=32, depth=64)  # the interpreter is slow
    monkeypatch.setattr(scaled_kernels, form, block)
    monkeypatch.setattr(scaled_kernels, "MANY_TOKENS", 1 if form == "MANY" else rows + 1)
    x, weight = random(rows, depth), random(columns, depth) / 12
    parts = rounded.quantise(x, small), rounded.quantise(weight, small)

    found = scaled_kernels.multiply(*parts, random(columns), activation, torch.float32)

    expected = rounded.multiply(*parts, random(columns), activation, torch.float32)
    assert relative_error(found, expected) <= 1e-6


@pytest.mark.parametrize("small", BOTH)
def test_kernels_are_compared_with_torch_before_they_are_used(small):
    def wrong(*args):
        return 1.1 * scaled_kernels.multiply(*args)

    parts = scaled_kernels.quantise, scaled_kernels.multiply
    assert products.difference(parts, 5, torch.device("cpu"), small) <= products.TOLERANCE
    assert products.difference((parts[0], wrong), 5, torch.device("cpu"), small) > products.TOLERANCE
