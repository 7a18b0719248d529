"""The training loop. What to learn is a function from the number of a batch to its losses; everything else is here.

A step depends on its number and on the parameters, on nothing else: a run that was killed and goes on from its
checkpoint takes the steps it would have taken. (On CUDA up to rounding: some of its sums have no fixed order.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from swiftlet_serve.models.errors import ModelError
from swiftlet_serve.models.training.curve import NAME, Point, read_curve, write_curve
from swiftlet_serve.models.training.lamb import Lamb
from swiftlet_serve.models.training.recipe import Finetuning, Optimisation, Pretraining
from swiftlet_serve.models.training.run import Stop, write

CHECKPOINT: Final = "checkpoint.pt"
TOLD: Final = 20  # steps between two points of the curve
WATCHED: Final = 100  # steps between two looks at what is held out; a multiple of TOLD


class DeviceError(ModelError):
    """There is no such device here; the message is one sentence."""


@dataclass(frozen=True)
class Schedule(Optimisation):
    """A linear warm-up and a linear decay to zero, of AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101) or LAMB."""

    steps: int
    learning_rate: float
    warmup: float = 0.06  # share of the steps
    weight_decay: float = 0.01  # of matrices; never of biases and norms
    clip: float = 1.0  # the gradient's norm

    @classmethod
    def of(cls, steps: int, work: Pretraining | Finetuning) -> Schedule:
        """The schedule that a recipe sets for so many steps."""
        return cls(
            steps,
            work.learning_rate,
            optimiser=work.optimiser,
            accumulate=work.accumulate,
            precision=work.precision,
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = max(1, round(self.steps * self.warmup))
        return self.learning_rate * min((step + 1) / rising, (self.steps - step) / max(1, self.steps - rising))


def find_device(name: str) -> torch.device:
    """The device of that name, "cpu" or "cuda".

    Raises:
        DeviceError: torch has no such device here.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("torch finds no CUDA device here: train on the CPU, or install a torch for your driver.")
    return torch.device(name)


def begun(directory: Path) -> bool:
    """Whether a training was saved there, and goes on from there, whatever a model starts with."""
    return (directory / CHECKPOINT).is_file()


def train(
    model: nn.Module,
    loss: Callable[[int], dict[str, Tensor]],
    schedule: Schedule,
    directory: Path,
    *,
    seed: int,
    device: torch.device | None = None,
    save_every: int = 200,
    report: Callable[[str], None] = print,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[], dict[str, Tensor]] | None = None,
    slowed: Callable[[int], tuple[float, Iterable[nn.Module]]] | None = None,
) -> None:
    """Minimises the sum of the named losses, and leaves the model trained, on the CPU.

    A step is the mean of `schedule.accumulate` consecutive batches, which `loss` is asked for by their number, counted
    from 0 over the whole run. The model is on the device then (the CPU if none is named), and so must its batches be.
    The directory gets `losses.csv` and `checkpoint.pt`; if it has them, training goes on from there. When told to
    stop (SIGINT, SIGTERM) the step at hand is finished and saved. `progress` is told the steps taken, and of how many.
    What `watch` finds, which may learn nothing, stands in the curve beside the losses. `slowed` says of a step by its
    number which parts of the model learn at a share of the rate, and at what share.
    """
    directory.mkdir(parents=True, exist_ok=True)
    device = device or torch.device("cpu")
    model.to(device)
    optimiser = _optimiser(model, schedule)
    state = _resume(model, optimiser, directory / CHECKPOINT)
    first, past = state.step, state.seconds
    points = [point for point in read_curve(directory / NAME) if point.step <= first]  # later ones come again
    started, bf16 = time.monotonic(), schedule.precision == "bf16"
    model.train()
    with Stop() as stop:
        for step in range(first, schedule.steps):
            rate = schedule.rate(step)
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.zero_grad(set_to_none=True)
            counter = FlopCounterMode(display=False) if step % TOLD == 0 else None
            with counter or nullcontext():
                for batch in range(step * schedule.accumulate, (step + 1) * schedule.accumulate):
                    torch.manual_seed(seed * 1_000_003 + batch)  # dropout of a batch is that batch's own
                    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                        losses = loss(batch)
                    torch.autograd.backward([value / schedule.accumulate for value in losses.values()])
                    _add(state.sums, losses)
            nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
            share, parts = slowed(step) if slowed is not None else (1.0, ())
            before = [(p, p.detach().clone()) for part in parts for p in part.parameters()]
            optimiser.step()
            for p, old in before:  # steps are proportional to the rate: a share of one is one at that share
                p.data.lerp_(old, 1 - share)
            if counter is not None:  # counting takes time: one step stands for those up to the next point
                state.flops_a_step = counter.get_total_flops()
            state.flops += state.flops_a_step
            state.step, last = step + 1, step + 1 == schedule.steps
            if state.step % TOLD == 0 or last:
                means = {name: float(total) / count for name, (total, count) in state.sums.items()}
                state.sums = {}
                if watch is not None and (state.step % WATCHED == 0 or last):
                    model.eval()
                    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                        means |= {name: float(value) for name, value in watch().items()}
                    model.train()
                seconds = time.monotonic() - started
                points.append(Point(state.step, rate, means, past + seconds, state.flops))
                write_curve(directory / NAME, points)
                text = " ".join(f"{name} {value:.3f}" for name, value in means.items())
                a_step = seconds / (state.step - first)
                speed = f"{a_step:.2f} s/step, {state.flops_a_step / a_step / 1e9:.0f} GFLOP/s"
                report(f"step {state.step}/{schedule.steps} {text} ({speed})")
            told = stop.number is not None  # once a step, so that nobody stops without having saved
            if state.step % save_every == 0 or last or told:
                state.seconds = past + time.monotonic() - started
                kept = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), **vars(state)}
                write(directory / CHECKPOINT, partial(torch.save, kept))
            if progress is not None:
                progress(state.step, schedule.steps)
            if told:
                break
        stop.now()
    model.eval().cpu()


Sums = dict[str, tuple[Tensor | float, int]]  # of each loss, and of how many batches


@dataclass
class State:
    """What a checkpoint keeps beside the model and its optimiser."""

    step: int = 0  # steps taken
    seconds: float = 0.0  # that they took
    flops: float = 0.0  # that they took
    flops_a_step: float = 0.0  # as counted last
    sums: Sums = field(default_factory=dict)  # of the losses since the last point of the curve


def _add(sums: Sums, losses: dict[str, Tensor]) -> None:
    """Adds up on the device: to read a loss there would be to wait for it, at every step."""
    for name, value in losses.items():
        total, count = sums.get(name, (0.0, 0))
        sums[name] = (total + value.detach().double(), count + 1)


def _optimiser(model: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if schedule.optimiser == "lamb":
        return Lamb(groups, lr=schedule.learning_rate)
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, fused=True)  # a sixth of the time, on a CPU as well


def _resume(model: nn.Module, optimiser: torch.optim.Optimizer, path: Path) -> State:
    if not path.is_file():
        return State()
    # To the CPU whatever the device: model and optimiser move what belongs elsewhere, and AdamW's counters do not.
    checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint.pop("model"))
    optimiser.load_state_dict(checkpoint.pop("optimiser"))
    return State(**checkpoint)  # an older one lacks fields that came later
