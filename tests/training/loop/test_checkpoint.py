"""Interrupted runs: checkpoints, signals and the directory of a run."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from swiftlet_train.loop.learning_curve import read_curve
from swiftlet_train.loop.run_directory import claim_directory
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.loop.trainer import train
from swiftlet_train.recipe import RecipeError
from tests.support.tiers import first
from tests.support.training import SILENT, same_parameters, same_state, stop_at, train_small_network


class DropoutNetwork(nn.Module):
    """A network with dropout, whose random state must be restored."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))

    def loss(self, step: int) -> dict[str, torch.Tensor]:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        out = self.inner(x)
        return {"one": (out[:, 0] - x.sum(1)).square().mean(), "other": out[:, 1:].square().mean()}


SCHEDULE = Schedule(steps=40, learning_rate=1e-2)


def train_dropout_network(
    directory: Path, *, stop_at: int | None = None, reports: list[str] | None = None
) -> DropoutNetwork:
    model = DropoutNetwork()

    def loss(step: int) -> dict[str, torch.Tensor]:
        if step == stop_at:
            raise KeyboardInterrupt
        return model.loss(step)

    report = SILENT if reports is None else reports.append
    train(model, loss, SCHEDULE, directory, seed=3, save_every=10, report=report)
    return model


@pytest.mark.parametrize("stops", first([[7], [10], [13], [39], [5, 11, 35]], [13], [5, 11, 35]), ids=str)
def test_train_resumes_to_the_result_of_an_uninterrupted_run(tmp_path, stops):
    whole = train_dropout_network(tmp_path / "whole")
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train_dropout_network(tmp_path / "interrupted", stop_at=stop)

    assert same_state(train_dropout_network(tmp_path / "interrupted"), whole)
    assert not same_state(whole, DropoutNetwork())


def test_train_does_not_repeat_a_completed_run(tmp_path):
    whole = train_dropout_network(tmp_path)

    assert same_state(train_dropout_network(tmp_path, stop_at=0), whole)


def test_checkpoint_survives_an_interrupted_save(tmp_path, monkeypatch):
    whole = train_dropout_network(tmp_path / "whole")
    real, calls = torch.save, []

    def save(content, path):
        calls.append(path)
        if len(calls) == 3:
            path.write(b"half of a checkpo")
            raise KeyboardInterrupt
        real(content, path)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        train_dropout_network(tmp_path / "interrupted")

    assert same_state(train_dropout_network(tmp_path / "interrupted"), whole)


def test_train_minimises_and_reports_the_loss(tmp_path):
    reports: list[str] = []
    model = train_dropout_network(tmp_path, reports=reports)
    earlier, later = read_curve(tmp_path / "losses.csv")

    assert (earlier.step, later.step) == (20, 40)
    assert later.losses.keys() == earlier.losses.keys() == {"one", "other"}
    assert sum(later.losses.values()) < sum(earlier.losses.values())
    assert len(reports) == 2
    assert reports[1].startswith("step 40/40 one ")
    assert not model.training


def test_learning_curve_of_a_resumed_run_has_each_step_once(tmp_path):
    train_dropout_network(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_dropout_network(tmp_path / "interrupted", stop_at=15)
    path = tmp_path / "interrupted/losses.csv"
    path.write_text("step,learning_rate,one,other,seconds\n20,0.1,1.0,1.0,2.0\n")  # reported, but not in the checkpoint
    train_dropout_network(tmp_path / "interrupted")

    first, second = read_curve(path)
    assert (first.step, second.step) == (20, 40)
    assert first.losses["one"] != 1


def test_claim_directory_rejects_other_settings(tmp_path):
    claim_directory(tmp_path / "run", {"steps": 3, "rate": 0.1})
    claim_directory(tmp_path / "run", {"rate": 0.1, "steps": 3})

    with pytest.raises(RecipeError, match="run holds a run of a different recipe"):
        claim_directory(tmp_path / "run", {"rate": 0.1, "steps": 4})


@pytest.mark.parametrize(
    ("optimiser", "stops"),
    first(product(["adamw", "lamb"], [[27], [14, 40], [62, 65]]), ("adamw", [14, 40]), ("lamb", [27])),
    ids=str,
)
def test_learning_curve_of_a_resumed_run_matches_an_uninterrupted_run(tmp_path, optimiser, stops):
    """Checkpoints are between two points of the learning curve."""
    schedule = Schedule(33, 1e-2, optimiser=optimiser, gradient_accumulation_steps=2)
    whole = train_small_network(tmp_path / "whole", schedule, save_every=7)
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train_small_network(tmp_path / "interrupted", schedule, hook=stop_at(stop), save_every=7)

    assert same_parameters(train_small_network(tmp_path / "interrupted", schedule, save_every=7), whole)
    found, expected = (read_curve(tmp_path / name / "losses.csv") for name in ("interrupted", "whole"))
    assert [replace(point, seconds=0) for point in found] == [replace(point, seconds=0) for point in expected]
    assert [point.step for point in found] == [20, 33]


@pytest.mark.parametrize("number", first([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_train_saves_a_checkpoint_on_a_signal(tmp_path, number):
    class SignalHandled(Exception):
        pass

    def handle(*_: object) -> None:
        raise SignalHandled

    schedule = Schedule(30, 1e-2)
    whole = train_small_network(tmp_path / "whole", schedule)
    before = signal.signal(number, handle)
    try:
        with pytest.raises(SignalHandled):
            train_small_network(
                tmp_path / "stopped", schedule, hook=lambda batch: batch == 13 and signal.raise_signal(number)
            )
        assert signal.getsignal(number) is handle
    finally:
        signal.signal(number, before)

    assert torch.load(tmp_path / "stopped/checkpoint.pt", weights_only=True)["step"] == 14
    assert same_parameters(train_small_network(tmp_path / "stopped", schedule), whole)
