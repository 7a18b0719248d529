"""The training loop. What to learn is a function from the number of a step to its loss; everything else is here.

A step depends on its number and on the parameters, on nothing else: a run that was killed and goes on from its
checkpoint takes the steps it would have taken.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.training.run import write


@dataclass(frozen=True)
class Schedule:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101) with a linear warm-up and a linear decay to zero."""

    steps: int
    learning_rate: float
    warmup: float = 0.06  # share of the steps
    weight_decay: float = 0.01  # of matrices; never of biases and norms
    clip: float = 1.0  # the gradient's norm

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = max(1, round(self.steps * self.warmup))
        return self.learning_rate * min((step + 1) / rising, (self.steps - step) / max(1, self.steps - rising))


def train(
    model: nn.Module,
    loss: Callable[[int], dict[str, Tensor]],
    schedule: Schedule,
    directory: Path,
    *,
    seed: int,
    save_every: int = 200,
    report: Callable[[str], None] = print,
) -> None:
    """Minimises the sum of the named losses of each step, and leaves the model trained.

    The directory gets `losses.csv` and `checkpoint.pt`; if it has them, training goes on from there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=schedule.learning_rate,
    )
    first = _resume(model, optimiser, directory / "checkpoint.pt")
    model.train()
    with _curve(directory / "losses.csv", first).open("a", newline="") as file:
        log = csv.writer(file)
        started = time.monotonic()
        sums: dict[str, float] = {}
        for step in range(first, schedule.steps):
            torch.manual_seed(seed * 1_000_003 + step)  # dropout of a step is that step's own
            for group in optimiser.param_groups:
                group["lr"] = schedule.rate(step)
            losses = loss(step)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(list(losses.values()))
            nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
            optimiser.step()
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + value.item()
            if (step + 1) % 20 == 0 or step + 1 == schedule.steps:
                since = (step % 20) + 1
                means = {name: value / since for name, value in sums.items()}
                log.writerow([step + 1, *(f"{value:.4f}" for value in means.values())])
                file.flush()
                pace = (time.monotonic() - started) / (step + 1 - first)
                text = " ".join(f"{name} {value:.3f}" for name, value in means.items())
                report(f"step {step + 1}/{schedule.steps} {text} ({pace:.2f} s/step)")
                sums = {}
            if (step + 1) % save_every == 0 or step + 1 == schedule.steps:
                state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}
                write(directory / "checkpoint.pt", partial(torch.save, state))
    model.eval()


def _resume(model: nn.Module, optimiser: torch.optim.Optimizer, path: Path) -> int:
    if not path.is_file():
        return 0
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimiser.load_state_dict(checkpoint["optimiser"])
    step: int = checkpoint["step"]
    return step


def _curve(path: Path, steps: int) -> Path:
    """The curve without what came after its first `steps`: those are taken again."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    path.write_text("".join(line for line in lines if int(line.split(",")[0]) <= steps))
    return path
