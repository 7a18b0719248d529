"""LAMB (You et al. 2019, arXiv:1904.00962, Algorithm 2): Adam whose step is as long as the tensor it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Lamb(torch.optim.Optimizer):
    """With bias correction, and φ the identity.

    A group whose `weight_decay` is 0 is not adapted either, as in google-research/albert: biases and norms move as
    Adam would move them.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch's is overloaded
        """Changes every parameter that has a gradient. Returns what `closure`, if there is one, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._change(parameter, parameter.grad, group)
        return loss

    def _change(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        first, second = group["betas"]
        mean = state["mean"].mul_(first).add_(gradient, alpha=1 - first)
        square = state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second ** state["step"])).sqrt_()
        change = mean / (1 - first ** state["step"]) / root.add_(group["eps"])
        if group["weight_decay"]:
            change.add_(parameter, alpha=group["weight_decay"])
            change.mul_(_trust(parameter.norm(), change.norm()))
        parameter.sub_(change, alpha=group["lr"])


def _trust(weight: Tensor, change: Tensor) -> Tensor:
    """The ratio of two norms; 1 where either is 0. Decided on the device, so that nothing waits for it."""
    return torch.where((weight > 0) & (change > 0), weight / change, 1.0)
