"""LAMB (You et al. 2019, arXiv:1904.00962, Algorithm 2): Adam with a step as long as the tensor's norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Lamb(torch.optim.Optimizer):
    """LAMB with bias correction, and with the identity for φ.

    A group with a `weight_decay` of 0 takes the steps of Adam, as google-research/albert does for biases and norms.
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
        """Updates every parameter that has a gradient. Returns the result of `closure`, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean = state["mean"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"])).sqrt_()
        change = mean / (1 - beta1 ** state["step"]) / root.add_(group["eps"])
        if group["weight_decay"]:
            change.add_(parameter, alpha=group["weight_decay"])
            change.mul_(_trust_ratio(parameter.norm(), change.norm()))
        parameter.sub_(change, alpha=group["lr"])


def _trust_ratio(weight: Tensor, change: Tensor) -> Tensor:
    """Returns the ratio of two norms, or 1 if either is 0. Computed on the device, to avoid a synchronisation."""
    return torch.where((weight > 0) & (change > 0), weight / change, 1.0)
