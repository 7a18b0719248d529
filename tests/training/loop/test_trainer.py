"""The training loop: steps, precision, devices, evaluation and reports."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from swiftlet_serve.cli.main import main
from swiftlet_train.loop.learning_curve import read_curve
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.loop.trainer import train
from tests.support.tiers import first
from tests.support.training import SILENT, SmallNetwork, same_parameters, train_small_network


@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
def test_train_accumulates_gradients_like_one_large_batch(tmp_path, optimiser):
    schedule = Schedule(10, 1e-2, optimiser=optimiser)
    big = train_small_network(tmp_path / "big", schedule, rows=24)
    small = train_small_network(tmp_path / "small", replace(schedule, gradient_accumulation_steps=3), rows=8)

    assert same_parameters(big, small, atol=1e-6)
    (ours,), (theirs,) = (read_curve(tmp_path / name / "losses.csv") for name in ("big", "small"))
    assert ours.losses["square"] == pytest.approx(theirs.losses["square"], rel=1e-5)


@pytest.mark.parametrize(
    ("optimiser", "precision"),
    first(product(["adamw", "lamb"], ["fp32", "bf16"]), ("adamw", "fp32"), ("lamb", "bf16")),
)
def test_train_minimises_the_loss_with_each_optimiser_and_precision(tmp_path, optimiser, precision):
    train_small_network(tmp_path, Schedule(100, 2e-2, optimiser=optimiser, precision=precision))
    points = read_curve(tmp_path / "losses.csv")

    assert points[-1].losses["square"] < 0.3 * points[0].losses["square"]


@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
def test_train_scales_the_steps_of_selected_modules(tmp_path, optimiser):
    """All runs take one step from the same parameters. A scale of 0 freezes the modules."""
    start, moved = SmallNetwork(), {}
    for scale in (1.0, 0.25, 0.0):
        model = SmallNetwork()
        train(
            model,
            partial(model.losses, rows=8),
            Schedule(1, 1e-2, optimiser=optimiser),
            tmp_path / str(scale),
            seed=3,
            report=SILENT,
            scale_learning_rate=lambda step, scale=scale, model=model: (scale, [model.inner[0], model.inner[2]]),
        )
        parts = zip(model.inner, start.inner, strict=True)
        moved[scale] = [[a - b for a, b in zip(m.parameters(), s.parameters(), strict=True)] for m, s in parts]

    for scale, parts in moved.items():
        for number, part in enumerate(parts):
            for step, whole in zip(part, moved[1.0][number], strict=True):
                assert torch.allclose(step, whole * (scale if number in (0, 2) else 1), rtol=1e-3, atol=1e-7)
    assert all(step.abs().max() > 1e-4 for part in moved[1.0] for step in part)


def test_train_uses_bf16_for_products_and_fp32_for_parameters(tmp_path):
    model, seen = SmallNetwork(), []

    def loss(number: int) -> dict[str, Tensor]:
        out = model.inner(torch.ones(2, 6))
        seen.append(out.dtype)
        return {"square": out.float().square().mean()}

    for precision in ("fp32", "bf16"):
        train(model, loss, Schedule(1, 0.1, precision=precision), tmp_path / precision, seed=0, report=SILENT)

    assert seen == [torch.float32, torch.bfloat16]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_train_on_cuda_matches_the_cpu(tmp_path, precision):
    model = SmallNetwork()
    loss = partial(model.losses, rows=8)
    schedule = Schedule(40, 1e-2, precision=precision)
    train(model, loss, schedule, tmp_path / "cuda", seed=3, device=torch.device("cuda"), report=SILENT)

    assert next(model.parameters()).device.type == "cpu"
    assert same_parameters(
        model, train_small_network(tmp_path / "cpu", schedule), atol=1e-3 if precision == "fp32" else 0.1
    )


def test_train_evaluates_without_changing_the_model(tmp_path):
    model, seen = SmallNetwork(), []

    def evaluate() -> dict[str, Tensor]:
        seen.append((model.training, torch.is_grad_enabled()))
        return {"held_out": torch.tensor(len(seen))}

    loss, schedule = partial(model.losses, rows=4), Schedule(130, 1e-2)
    train(model, loss, schedule, tmp_path / "evaluated", seed=3, report=SILENT, evaluate=evaluate)

    assert same_parameters(model, train_small_network(tmp_path / "alone", schedule, rows=4))
    assert seen == [(False, False)] * 2
    found = {
        point.step: point.losses["held_out"]
        for point in read_curve(tmp_path / "evaluated/losses.csv")[1:]
        if "held_out" in point.losses
    }
    assert found == {100: 1, 130: 2}


def test_train_counts_floating_point_operations(tmp_path):
    """A product counts twice: 8 x (6 x 16 + 16 x 1) forward, as many for the weights, and 16 for the inputs."""
    reports: list[str] = []
    model = SmallNetwork()
    schedule = Schedule(21, 1e-2, gradient_accumulation_steps=2)
    train(model, partial(model.losses, rows=8), schedule, tmp_path, seed=3, report=reports.append)
    per_step = 2 * 2 * 8 * (2 * (6 * 16 + 16) + 16)

    assert [point.flops for point in read_curve(tmp_path / "losses.csv")] == [20 * per_step, 21 * per_step]
    assert all(re.search(r" s/step, \d+ GFLOP/s\)$", line) for line in reports)


def test_train_reports_the_progress_of_each_step(tmp_path):
    seen: list[tuple[int, int]] = []
    model = SmallNetwork()
    train(
        model,
        partial(model.losses, rows=8),
        Schedule(3, 0.1),
        tmp_path,
        seed=0,
        report=SILENT,
        progress=lambda done, total: seen.append((done, total)),
    )

    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_train_averages_a_loss_over_its_batches(tmp_path):
    model = SmallNetwork()

    def loss(number: int) -> dict[str, Tensor]:
        zero = model.inner(torch.ones(1, 6)).sum() * 0
        return {"always": zero + 1} | ({"late": zero + number} if number >= 18 else {})

    train(model, loss, Schedule(20, 0.1), tmp_path, seed=0, report=SILENT)

    (point,) = read_curve(tmp_path / "losses.csv")
    assert point.losses == {"always": 1, "late": 18.5}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_train_command_rejects_a_missing_device_before_it_writes(tmp_path):
    result = CliRunner().invoke(main, ["train", "albert", "--device", "cuda", "--runs", str(tmp_path / "runs")])

    assert result.exit_code == 1
    assert "torch finds no CUDA device." in result.output
    assert not (tmp_path / "runs").exists()
