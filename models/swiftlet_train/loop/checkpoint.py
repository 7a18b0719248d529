"""Checkpoints: the state of a run, saved and restored."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from swiftlet_train.loop.run_directory import write_atomically

CHECKPOINT: Final = "checkpoint.pt"  # in a run's directory

LossSums = dict[str, tuple[Tensor | float, int]]
"""The sum and the number of batches of each loss."""


@dataclass
class State:
    """The progress of a run, saved beside the model and its optimiser."""

    step: int = 0
    """Completed steps."""
    seconds: float = 0.0
    """Training time."""
    flops: float = 0.0
    """Floating-point operations."""
    flops_per_step: float = 0.0
    """The last measurement."""
    losses: LossSums = field(default_factory=dict)
    """Since the last point of the learning curve."""

    def add_losses(self, losses: dict[str, Tensor]) -> None:
        """Adds the losses of a batch. The sums stay on the device, because reading them would synchronise each step."""
        for name, value in losses.items():
            total, count = self.losses.get(name, (0.0, 0))
            self.losses[name] = (total + value.detach().double(), count + 1)


def has_checkpoint(directory: Path) -> bool:
    """Returns whether a training in this directory would resume."""
    return (directory / CHECKPOINT).is_file()


def save_checkpoint(directory: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State) -> None:
    """Writes a checkpoint atomically."""
    content = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), **vars(state)}
    write_atomically(directory / CHECKPOINT, partial(torch.save, content))


def snapshot_path(directory: Path, step: int) -> Path:
    """Returns the file of the parameters after a number of steps."""
    return directory / f"step-{step}.pt"


def save_snapshot(directory: Path, model: nn.Module, step: int) -> None:
    """Writes the parameters after a number of steps. A later step does not overwrite them."""
    write_atomically(snapshot_path(directory, step), partial(torch.save, model.state_dict()))


def resume(directory: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> State:
    """Restores the model, the optimiser and the state from a checkpoint. Returns a new state without a checkpoint."""
    if not has_checkpoint(directory):
        return State()
    # Load to the CPU: model and optimiser move their tensors to the device, except AdamW's counters, which stay.
    checkpoint: dict[str, Any] = torch.load(directory / CHECKPOINT, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint.pop("model"))
    optimiser.load_state_dict(checkpoint.pop("optimiser"))
    return State(**checkpoint)
