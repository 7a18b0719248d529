"""The learning-rate schedule and the optimisers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from swiftlet_train.loop.lamb import Lamb
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.loop.trainer import train
from tests.support.training import SILENT


@given(st.integers(1, 500), st.floats(0, 1))
def test_schedule_rises_to_its_peak_and_falls_without_reaching_zero(steps, warmup):
    schedule = Schedule(steps, learning_rate=2.0, warmup=warmup)
    rates = [schedule.rate(step) for step in range(steps)]
    peak = max(1, round(steps * warmup)) - 1

    assert rates[peak] == max(rates) == pytest.approx(2.0)
    assert all(rate > 0 for rate in rates)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_schedule_is_linear_on_both_sides():
    schedule = Schedule(100, learning_rate=1.0, warmup=0.1)

    assert [schedule.rate(step) for step in (0, 4, 9, 10, 55, 99)] == pytest.approx([0.1, 0.5, 1, 1, 0.5, 1 / 90])


def test_optimiser_decays_matrices_but_not_biases(tmp_path):
    class Parameters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.ones(2, 2))
            self.bias = nn.Parameter(torch.ones(2))

    model = Parameters()
    train(
        model,
        lambda batch: {"zero": (model.matrix.sum() + model.bias.sum()) * 0.0},  # no gradient, only decay
        Schedule(5, 0.1, weight_decay=0.5),
        tmp_path,
        seed=0,
        report=SILENT,
    )

    assert model.bias.tolist() == [1, 1]
    assert model.matrix.max() < 1


def test_lamb_takes_the_step_computed_by_hand():
    """x = (3, 4), g = (1, -2), then (2, 2); the second tensor has no decay."""
    x, free = (nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [x], "weight_decay": 0.1}, {"params": [free], "weight_decay": 0.0}]
    optimiser = Lamb(groups, lr=0.01, betas=(0.9, 0.99), eps=0.0)
    x.grad = free.grad = torch.tensor([1.0, -2.0], dtype=torch.float64)
    optimiser.step()

    # With bias correction m / sqrt(v) = g / |g| = (1, -1). Decay adds (0.3, 0.4): (1.3, -0.6), of norm sqrt(2.05).
    ratio = 5 / 2.05**0.5
    assert x.tolist() == pytest.approx([3 - 0.01 * ratio * 1.3, 4 + 0.01 * ratio * 0.6], rel=1e-12)
    assert free.tolist() == pytest.approx([3 - 0.01, 4 + 0.01], rel=1e-12)

    before = free.tolist()
    free.grad = torch.tensor([2.0, 2.0], dtype=torch.float64)
    optimiser.step()
    # m = 0.09 + 0.2 = 0.29 and -0.18 + 0.2 = 0.02, over 1 - 0.81; v = 0.0099 + 0.04 and 0.0396 + 0.04, over 1 - 0.9801.
    moves = [m / 0.19 / (v / 0.0199) ** 0.5 for m, v in ((0.29, 0.0499), (0.02, 0.0796))]
    assert free.tolist() == pytest.approx([b - 0.01 * move for b, move in zip(before, moves, strict=True)], rel=1e-12)


@pytest.mark.parametrize(("weight", "gradient", "moved"), [(0.0, 3.0, -0.1), (0.0, 0.0, 0.0)])
def test_lamb_uses_a_trust_ratio_of_1_if_a_norm_is_0(weight, gradient, moved):
    x = nn.Parameter(torch.tensor([weight], dtype=torch.float64))
    x.grad = torch.tensor([gradient], dtype=torch.float64)
    Lamb([x], lr=0.1, eps=1e-12).step()

    assert x.item() == pytest.approx(weight + moved)


def test_lamb_resumes_exactly_from_its_state():
    def steps(x: nn.Parameter, optimiser: Lamb, numbers: range) -> None:
        for number in numbers:
            x.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
            optimiser.step()

    whole = nn.Parameter(torch.ones(4, 3))
    steps(whole, Lamb([whole], lr=0.1), range(5))
    half = nn.Parameter(torch.ones(4, 3))
    first = Lamb([half], lr=0.1)
    steps(half, first, range(3))
    second = Lamb([half], lr=0.9)
    second.load_state_dict(first.state_dict())
    steps(half, second, range(3, 5))

    assert torch.equal(whole, half)
