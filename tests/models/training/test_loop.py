"""The loop and what it is made of: steps, the optimisers, checkpoints, and the curve of the losses."""

from __future__ import annotations

import builtins
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from swiftlet_serve.models.training.curve import Point, read_curve, write_curve
from swiftlet_serve.models.training.lamb import Lamb
from swiftlet_serve.models.training.loop import Schedule, train
from swiftlet_serve.models.training.recipe import Finetuning, Pretraining, RecipeError, settings
from swiftlet_serve.service.cli import bar, main, note

WORK = Pretraining({"a.txt": 1}, row_tokens=8, batch_rows=2, steps=3, learning_rate=0.1)


# --- LAMB


def test_a_step_of_lamb_is_the_one_worked_out_by_hand():
    """x = (3, 4), g = (1, -2), then (2, 2); the second tensor is not adapted."""
    x, free = (nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64)) for _ in range(2))
    groups = [{"params": [x], "weight_decay": 0.1}, {"params": [free], "weight_decay": 0.0}]
    optimiser = Lamb(groups, lr=0.01, betas=(0.9, 0.99), eps=0.0)
    x.grad = free.grad = torch.tensor([1.0, -2.0], dtype=torch.float64)
    optimiser.step()

    # Once corrected, m / sqrt(v) = g / |g| = (1, -1). Decay adds (0.3, 0.4): (1.3, -0.6), as long as sqrt(2.05).
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
def test_the_trust_ratio_is_1_where_a_norm_is_0(weight, gradient, moved):
    x = nn.Parameter(torch.tensor([weight], dtype=torch.float64))
    x.grad = torch.tensor([gradient], dtype=torch.float64)
    Lamb([x], lr=0.1, eps=1e-12).step()

    assert x.item() == pytest.approx(weight + moved)


def test_lamb_goes_on_from_its_state_exactly():
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


# --- Steps


class Still(nn.Module):
    """Without dropout: its loss is that of the rows alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))

    def losses(self, number: int, rows: int) -> dict[str, Tensor]:
        every = torch.randn(960, 6, generator=torch.Generator().manual_seed(0))
        x = every[number * rows : (number + 1) * rows].to(next(self.parameters()).device)
        return {"square": (self.inner(x)[:, 0] - x.sum(1)).float().square().mean()}


def learn(
    directory: Path, schedule: Schedule, rows: int = 8, hook: Callable[[int], None] | None = None, save_every: int = 10
) -> Still:
    model = Still()

    def loss(number: int) -> dict[str, Tensor]:
        if hook is not None:
            hook(number)
        return model.losses(number, rows)

    train(model, loss, schedule, directory, seed=3, save_every=save_every, report=lambda text: None)
    return model


def same(one: nn.Module, other: nn.Module, atol: float = 0.0) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(ours, theirs, rtol=0, atol=atol) for ours, theirs in pairs)


@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
def test_accumulated_batches_are_one_big_batch(tmp_path, optimiser):
    schedule = Schedule(10, 1e-2, optimiser=optimiser)
    big = learn(tmp_path / "big", schedule, rows=24)
    small = learn(tmp_path / "small", replace(schedule, accumulate=3), rows=8)

    assert same(big, small, atol=1e-6)
    (ours,), (theirs,) = (read_curve(tmp_path / name / "losses.csv") for name in ("big", "small"))
    assert ours.losses["square"] == pytest.approx(theirs.losses["square"], rel=1e-5)


@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_minimises_the_loss(tmp_path, optimiser, precision):
    learn(tmp_path, Schedule(100, 2e-2, optimiser=optimiser, precision=precision))
    points = read_curve(tmp_path / "losses.csv")

    assert points[-1].losses["square"] < 0.3 * points[0].losses["square"]


@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
def test_a_part_that_is_slowed_takes_a_share_of_each_step(tmp_path, optimiser):
    """Of one step, which starts where the whole one does; and none at all is as if it was frozen."""
    start, moved = Still(), {}
    for share in (1.0, 0.25, 0.0):
        model = Still()
        train(
            model,
            partial(model.losses, rows=8),
            Schedule(1, 1e-2, optimiser=optimiser),
            tmp_path / str(share),
            seed=3,
            report=lambda text: None,
            slowed=lambda step, share=share, model=model: (share, [model.inner[0], model.inner[2]]),
        )
        parts = zip(model.inner, start.inner, strict=True)
        moved[share] = [[a - b for a, b in zip(m.parameters(), s.parameters(), strict=True)] for m, s in parts]

    for share, parts in moved.items():
        for number, part in enumerate(parts):
            for step, whole in zip(part, moved[1.0][number], strict=True):
                assert torch.allclose(step, whole * (share if number in (0, 2) else 1), rtol=1e-3, atol=1e-7)
    assert all(step.abs().max() > 1e-4 for part in moved[1.0] for step in part)


def test_bf16_is_of_the_products_and_not_of_the_parameters(tmp_path):
    model, seen = Still(), []

    def loss(number: int) -> dict[str, Tensor]:
        out = model.inner(torch.ones(2, 6))
        seen.append(out.dtype)
        return {"square": out.float().square().mean()}

    for precision in ("fp32", "bf16"):
        train(
            model, loss, Schedule(1, 0.1, precision=precision), tmp_path / precision, seed=0, report=lambda text: None
        )

    assert seen == [torch.float32, torch.bfloat16]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_cuda_device_trains_as_the_cpu_does(tmp_path, precision):
    model = Still()
    loss = partial(model.losses, rows=8)
    schedule = Schedule(40, 1e-2, precision=precision)
    train(model, loss, schedule, tmp_path / "cuda", seed=3, device=torch.device("cuda"), report=lambda text: None)

    assert next(model.parameters()).device.type == "cpu"
    assert same(model, learn(tmp_path / "cpu", schedule), atol=1e-3 if precision == "fp32" else 0.1)


def test_what_is_watched_is_told_and_changes_nothing(tmp_path):
    model, seen = Still(), []

    def watch() -> dict[str, Tensor]:
        seen.append((model.training, torch.is_grad_enabled()))
        return {"held_out": torch.tensor(len(seen))}

    loss, schedule = partial(model.losses, rows=4), Schedule(130, 1e-2)
    train(model, loss, schedule, tmp_path / "watched", seed=3, report=lambda text: None, watch=watch)

    assert same(model, learn(tmp_path / "alone", schedule, rows=4))
    assert seen == [(False, False)] * 2
    found = {
        point.step: point.losses["held_out"]
        for point in read_curve(tmp_path / "watched/losses.csv")[1:]
        if "held_out" in point.losses
    }
    assert found == {100: 1, 130: 2}


def test_the_curve_tells_the_operations_of_every_product(tmp_path):
    """Two a multiplication: forward 8 x (6 x 16 + 16 x 1); back as many for weights, and for what enters the second."""
    said: list[str] = []
    model = Still()
    schedule = Schedule(21, 1e-2, accumulate=2)
    train(model, partial(model.losses, rows=8), schedule, tmp_path, seed=3, report=said.append)
    a_step = 2 * 2 * 8 * (2 * (6 * 16 + 16) + 16)

    assert [point.flops for point in read_curve(tmp_path / "losses.csv")] == [20 * a_step, 21 * a_step]
    assert all(re.search(r" s/step, \d+ GFLOP/s\)$", line) for line in said)


# --- Checkpoints


def stop_at(batch: int) -> Callable[[int], None]:
    def hook(number: int) -> None:
        if number == batch:
            raise KeyboardInterrupt

    return hook


@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
@pytest.mark.parametrize("stops", [[27], [14, 40], [62, 65]], ids=str)
def test_a_killed_run_ends_the_same_and_so_does_its_curve(tmp_path, optimiser, stops):
    """Checkpoints lie in the middle of what a point of the curve is the mean of."""
    schedule = Schedule(33, 1e-2, optimiser=optimiser, accumulate=2)
    whole = learn(tmp_path / "whole", schedule, save_every=7)
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            learn(tmp_path / "killed", schedule, hook=stop_at(stop), save_every=7)

    assert same(learn(tmp_path / "killed", schedule, save_every=7), whole)
    told, expected = (read_curve(tmp_path / name / "losses.csv") for name in ("killed", "whole"))
    assert [replace(point, seconds=0) for point in told] == [replace(point, seconds=0) for point in expected]
    assert [point.step for point in told] == [20, 33]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_saves_the_step_at_hand(tmp_path, number):
    class Told(Exception):
        pass

    def tell(*_: object) -> None:
        raise Told

    schedule = Schedule(30, 1e-2)
    whole = learn(tmp_path / "whole", schedule)
    before = signal.signal(number, tell)
    try:
        with pytest.raises(Told):
            learn(tmp_path / "told", schedule, hook=lambda batch: signal.raise_signal(number) if batch == 13 else None)
        assert signal.getsignal(number) is tell
    finally:
        signal.signal(number, before)

    assert torch.load(tmp_path / "told/checkpoint.pt", weights_only=True)["step"] == 14
    assert same(learn(tmp_path / "told", schedule), whole)


def test_progress_is_told_of_every_step(tmp_path):
    told: list[tuple[int, int]] = []
    model = Still()
    train(
        model,
        partial(model.losses, rows=8),
        Schedule(3, 0.1),
        tmp_path,
        seed=0,
        report=lambda text: None,
        progress=lambda done, total: told.append((done, total)),
    )

    assert told == [(1, 3), (2, 3), (3, 3)]


# --- The curve


POINTS = [Point(20, 1e-3, {"features": 1.25}, 3.5), Point(40, 5e-4, {"features": 1.0, "mlm": 7.125}, 7.0, 2e9)]


def test_a_curve_is_read_as_it_was_written_whenever_a_loss_began(tmp_path):
    write_curve(tmp_path / "losses.csv", POINTS)

    assert read_curve(tmp_path / "losses.csv") == POINTS
    assert (tmp_path / "losses.csv").read_text() == (
        "step,learning_rate,features,mlm,seconds,flops\n20,0.001,1.25,,3.5,0\n40,0.0005,1,7.125,7.0,2e+09\n"
    )


def test_a_curve_that_is_not_there_or_has_no_header_has_no_points(tmp_path):
    (tmp_path / "old.csv").write_text("20,7.1446,1.3444\n40,6.9505,1.1029\n")

    assert read_curve(tmp_path / "nowhere.csv") == read_curve(tmp_path / "old.csv") == []


def test_a_loss_is_the_mean_of_the_batches_that_had_it(tmp_path):
    model = Still()

    def loss(number: int) -> dict[str, Tensor]:
        zero = model.inner(torch.ones(1, 6)).sum() * 0
        return {"always": zero + 1} | ({"late": zero + number} if number >= 18 else {})

    train(model, loss, Schedule(20, 0.1), tmp_path, seed=0, report=lambda text: None)

    (point,) = read_curve(tmp_path / "losses.csv")
    assert point.losses == {"always": 1, "late": 18.5}


def test_curves_are_drawn_one_a_run(tmp_path, monkeypatch):
    axes = pytest.importorskip("matplotlib.axes")
    drawn = []
    real = axes.Axes.plot

    def plot(self, x, y, **options):
        drawn.append((options["label"], x, y))
        return real(self, x, y, **options)

    monkeypatch.setattr(axes.Axes, "plot", plot)
    for name, points in (("one", POINTS), ("other", POINTS[:1])):
        (tmp_path / name).mkdir()
        write_curve(tmp_path / name / "losses.csv", points)
    one, other, out = str(tmp_path / "one"), str(tmp_path / "other/losses.csv"), str(tmp_path / "out.png")
    result = CliRunner().invoke(main, ["plot", one, other, "--out", out])

    assert result.exit_code == 0
    assert result.stdout == f"{out}\n"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert drawn == [(one, [20, 40], [1.25, 1]), (other, [20], [1.25]), (one, [40], [7.125])]


def test_a_plot_shows_the_losses_and_the_axis_that_are_asked_for(tmp_path, monkeypatch):
    axes = pytest.importorskip("matplotlib.axes")
    drawn = []
    monkeypatch.setattr(axes.Axes, "plot", lambda self, x, y, **_: drawn.append((self.get_title(), x, y)))
    write_curve(tmp_path / "losses.csv", POINTS)
    arguments = ["plot", str(tmp_path), "--out", str(tmp_path / "out.png"), "--against", "flops"]
    result = CliRunner().invoke(main, [*arguments, "--loss", "mlm"])
    refused = CliRunner().invoke(main, [*arguments, "--loss", "nothing"])

    assert result.exit_code == 0
    assert [(x, y) for _, x, y in drawn] == [([2e9], [7.125])]
    assert "no run has a loss 'nothing': there are features, mlm." in refused.output


def test_a_run_without_losses_is_named(tmp_path):
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(main, ["plot", str(tmp_path)])

    assert result.exit_code == 1
    assert f"{tmp_path} holds no losses to draw." in result.output


def test_drawing_says_which_extra_it_needs(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "swiftlet_serve.models.training.plot":
            raise ModuleNotFoundError("no", name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    result = CliRunner().invoke(main, ["plot", str(tmp_path)])

    assert result.exit_code == 1
    assert "pip install 'swiftlet-serve[plot]'" in result.output


# --- The recipe and the command


def test_a_run_older_than_a_field_is_still_the_run_of_its_recipe():
    """The facts are those of runs that were written before there was a choice."""
    assert settings(WORK).keys() == {*("corpora", "row_tokens", "batch_rows", "steps", "learning_rate")}
    assert settings(Finetuning("qa", evaluate="a", licences=())).keys() == {
        *("task", "evaluate", "licences", "train", "skip", "limit", "epochs", "batch_rows", "learning_rate"),
        *("max_tokens", "labels"),
    }


@pytest.mark.parametrize("change", [{"optimiser": "lamb"}, {"accumulate": 2}, {"precision": "bf16"}])
def test_a_field_that_is_set_decides_a_run(change):
    assert settings(replace(WORK, **change)) == settings(WORK) | change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"optimiser": "sgd"}, "optimiser is one of adamw, lamb, and not 'sgd'"),
        ({"precision": "fp16"}, "precision is one of fp32, bf16, and not 'fp16'"),
        ({"accumulate": 0}, "accumulate is a whole number from 1 on, and not 0"),
        ({"accumulate": True}, "not True"),
    ],
    ids=str,
)
def test_what_cannot_be_set_is_refused(change, said):
    with pytest.raises(RecipeError, match=said):
        replace(WORK, **change)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path):
    result = CliRunner().invoke(main, ["train", "albert", "--device", "cuda", "--runs", str(tmp_path / "runs")])

    assert result.exit_code == 1
    assert "torch finds no CUDA device here" in result.output
    assert not (tmp_path / "runs").exists()


def test_a_note_does_not_run_into_the_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar(1, 2)
    note("half")

    assert capsys.readouterr().err.endswith("1/2\r\x1b[Khalf\n")
