"""The training loop.

A step depends on its number and on the parameters only. A run that resumes from its checkpoint therefore takes the same
steps as an uninterrupted one. On CUDA this holds up to rounding, because some sums there have no fixed order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from swiftlet_models.device_peak import measured_peak
from swiftlet_models.errors import ModelError
from swiftlet_train.loop.acceleration import TokenCounter, accelerated
from swiftlet_train.loop.checkpoint import State, resume, save_checkpoint, save_snapshot
from swiftlet_train.loop.interrupt import DeferredInterrupt
from swiftlet_train.loop.learning_curve import LOSSES_FILE, CurvePoint, read_curve, write_curve
from swiftlet_train.loop.run_directory import locked
from swiftlet_train.loop.schedule import Schedule

REPORT_EVERY: Final = 20  # steps between two points of the learning curve
EVALUATE_EVERY: Final = 100  # steps between two evaluations; a multiple of REPORT_EVERY

Losses = dict[str, Tensor]
"""Scalar losses by name. Their sum is minimised."""


class DeviceError(ModelError):
    """Raised when a device is not available. The message is one sentence."""


def find_device(name: str) -> torch.device:
    """Returns the device of this name, "cpu" or "cuda".

    Raises:
        DeviceError: torch has no such device on this machine.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("torch finds no CUDA device. Train on the CPU, or install a torch that fits your driver.")
    return torch.device(name)


def train(
    model: nn.Module,
    compute_losses: Callable[[int], Losses],
    schedule: Schedule,
    directory: Path,
    *,
    seed: int,
    device: torch.device | None = None,
    save_every: int = 200,
    report: Callable[[str], None] = print,
    progress: Callable[[int, int], None] | None = None,
    evaluate: Callable[[], Losses] | None = None,
    scale_learning_rate: Callable[[int], tuple[float, Iterable[nn.Module]]] | None = None,
    snapshots: Collection[int] = (),
    accelerate: bool = True,
) -> None:
    """Minimises the sum of the losses. Leaves the trained model on the CPU, in evaluation mode.

    `compute_losses` takes the number of a batch, counted from 0 over the whole run. A step uses the mean gradient of
    `schedule.gradient_accumulation_steps` consecutive batches. The model is on the device meanwhile (default: the CPU),
    and the batches must be there too.

    The directory gets `losses.csv` and `checkpoint.pt`. If it already has them, training resumes from there. On SIGINT
    or SIGTERM, training finishes the current step and saves a checkpoint.

    `progress` receives the completed and the total steps. `evaluate` returns further losses for the learning curve; it
    runs without gradients. `scale_learning_rate` takes the number of a step and returns a scale and the modules whose
    learning rate it scales. After each number of steps in `snapshots`, the directory gets a copy of the parameters.
    `accelerate` allows compiled layers and layers without padding on a GPU.

    Raises:
        RecipeError: another process trains in the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    device = device or torch.device("cpu")
    model.to(device)
    optimiser = schedule.make_optimiser(model)
    bf16 = schedule.precision == "bf16"
    with ExitStack() as held:
        held.enter_context(locked(directory))  # before anything is read, which another process may still write
        interrupt = held.enter_context(DeferredInterrupt())
        state = resume(directory, model, optimiser)
        first_step, earlier_seconds = state.step, state.seconds
        # Points after the checkpoint are written again.
        points = [point for point in read_curve(directory / LOSSES_FILE) if point.step <= first_step]
        speed = held.enter_context(closing(Speed(model, device, first_step)))
        if accelerate:
            held.enter_context(accelerated(model, device, bf16=bf16))
        started = time.monotonic()
        model.train()
        for step in range(first_step, schedule.steps):
            learning_rate = schedule.rate(step)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            optimiser.zero_grad(set_to_none=True)
            # Counting takes time, so one step in REPORT_EVERY is counted and stands for the others.
            counter = FlopCounterMode(display=False) if step % REPORT_EVERY == 0 else None
            batches = schedule.gradient_accumulation_steps
            with ExitStack() as stack:
                if counter is not None:
                    stack.enter_context(counter)
                    if device.type == "cuda":  # compiled code is not counted
                        stack.enter_context(torch.compiler.set_stance("force_eager"))
                for batch in range(step * batches, (step + 1) * batches):
                    _seed(seed * 1_000_003 + batch, device)  # makes dropout a function of the batch number
                    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                        losses = compute_losses(batch)
                    torch.autograd.backward([value / batches for value in losses.values()])
                    state.add_losses(losses)
            nn.utils.clip_grad_norm_(model.parameters(), schedule.max_gradient_norm)
            scale, modules = scale_learning_rate(step) if scale_learning_rate is not None else (1.0, ())
            _step(optimiser, scale, modules)
            if counter is not None:
                state.flops_per_step = counter.get_total_flops()
            state.flops += state.flops_per_step
            state.step, is_last = step + 1, step + 1 == schedule.steps
            if state.step % REPORT_EVERY == 0 or is_last:
                means = _take_means(state)
                if evaluate is not None and (state.step % EVALUATE_EVERY == 0 or is_last):
                    means |= _evaluate(model, evaluate, device, bf16=bf16)
                seconds = time.monotonic() - started
                points.append(CurvePoint(state.step, learning_rate, means, earlier_seconds + seconds, state.flops))
                write_curve(directory / LOSSES_FILE, points)
                report(_format_progress(state, schedule.steps, means, seconds / (state.step - first_step), speed))
            interrupted = interrupt.signal is not None  # read once, so that a stop always follows a save
            if state.step % save_every == 0 or is_last or interrupted:
                state.seconds = earlier_seconds + time.monotonic() - started
                save_checkpoint(directory, model, optimiser, state)
            if state.step in snapshots:
                save_snapshot(directory, model, state.step)
            if progress is not None:
                progress(state.step, schedule.steps)
            if interrupted:
                break
        interrupt.deliver()
    model.eval().cpu()


def _seed(seed: int, device: torch.device) -> None:
    """Seeds the device's generator.

    Without a GPU, `torch.manual_seed` also records a stack trace in each call, which takes 1.4 ms.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def _step(optimiser: torch.optim.Optimizer, scale: float, modules: Iterable[nn.Module]) -> None:
    """Takes a step, scaled for some modules. Steps are proportional to the learning rate."""
    before = [(p, p.detach().clone()) for module in modules for p in module.parameters()]
    optimiser.step()
    for parameter, old in before:
        parameter.data.lerp_(old, 1 - scale)


def _take_means(state: State) -> dict[str, float]:
    means = {name: float(total) / count for name, (total, count) in state.losses.items()}
    state.losses = {}
    return means


def _evaluate(
    model: nn.Module, evaluate: Callable[[], Losses], device: torch.device, *, bf16: bool
) -> dict[str, float]:
    model.eval()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        losses = {name: float(value) for name, value in evaluate().items()}
    model.train()
    return losses


class Speed:
    """The speed of the steps since the last report: the first ones also compile."""

    def __init__(self, model: nn.Module, device: torch.device, step: int) -> None:
        """Starts to count the model's tokens after this number of steps. Measures the peak of a GPU."""
        self._tokens = TokenCounter(model)
        self._peak = 2 * measured_peak(device) if device.type == "cuda" else None  # in operations per second
        self._step, self._time = step, time.monotonic()

    def format(self, state: State) -> str:
        """Returns the tokens per second, if there are any, and the share of a GPU's peak."""
        tokens, now = self._tokens.take(), time.monotonic()
        steps, seconds = state.step - self._step, now - self._time
        self._step, self._time = state.step, now
        text = f", {tokens / seconds:,.0f} tokens/s" if tokens else ""
        if self._peak is not None:
            text += f", {state.flops_per_step * steps / seconds / self._peak:.0%} of the peak"
        return text

    def close(self) -> None:
        """Leaves the model as it was."""
        self._tokens.close()


def _format_progress(state: State, steps: int, means: dict[str, float], seconds_per_step: float, speed: Speed) -> str:
    losses = " ".join(f"{name} {value:.3f}" for name, value in means.items())
    rate = f"{seconds_per_step:.2f} s/step, {state.flops_per_step / seconds_per_step / 1e9:.0f} GFLOP/s"
    return f"step {state.step}/{steps} {losses} ({rate}{speed.format(state)})"
