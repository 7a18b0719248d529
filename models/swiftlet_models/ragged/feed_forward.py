"""The part of a layer with a bottleneck that follows its attention, as one kernel reads its weights.

It is MobileBERT's: a product and a residual, J feed-forward networks with ReLU, and the product that leaves the layer,
each with a gain for its residual instead of a norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from swiftlet_models.folding import Array, Folded


@dataclass(frozen=True)
class FeedForward:
    """The weights of a layer, with inputs first. Shape letters: see `swiftlet_models.architectures.layers`."""

    output: tuple[Tensor, Tensor, Tensor]  # (C, C), and bias and gain (C,)
    inner: tuple[Tensor, Tensor]  # (J, C, I), and bias (J, I)
    outer: tuple[Tensor, Tensor, Tensor]  # (J, I, C), and bias and gain (J, C)
    leave: tuple[Tensor, Tensor, Tensor]  # (C, H), and bias and gain (H,)

    @property
    def networks(self) -> int:
        """J."""
        return self.inner[0].shape[0]

    @property
    def width(self) -> int:
        """C."""
        return self.inner[0].shape[1]

    @property
    def intermediate(self) -> int:
        """I."""
        return self.inner[0].shape[2]

    @property
    def hidden(self) -> int:
        """H."""
        return self.leave[0].shape[1]

    @staticmethod
    def holds(product: str) -> bool:
        """Returns whether a product of a layer is in its `FeedForward`."""
        return product in ("output", "leave") or product.startswith("feed_forward.")

    @classmethod
    def of(cls, folded: Folded, layer: str, to_device: Callable[[Array], Tensor]) -> FeedForward | None:
        """Returns the weights of a layer, or None if it has no such part.

        Args:
            folded: the network.
            layer: the beginning of the names of the layer's parameters.
            to_device: puts an array on the device.
        """
        traits = folded.traits
        if traits.bottleneck is None or traits.norm != "no_norm" or traits.activation != "relu":
            return None

        def part(names: list[str], *, gain: bool, stack: bool) -> list[Tensor]:
            products = [folded.products[layer + name] for name in names]
            arrays = [[product.weight.T for product in products], [product.bias for product in products]]
            if gain:
                arrays.append([folded.vectors[f"{layer}{name}.gain"] for name in names])
            return [to_device(np.stack(layers) if stack else layers[0]).contiguous() for layers in arrays]

        networks = [f"feed_forward.{j}." for j in range(len(traits.feed_forward))]
        inner = part([name + "inner" for name in networks], gain=False, stack=True)
        outer = part([name + "outer" for name in networks], gain=True, stack=True)
        output, leave = (part([name], gain=True, stack=False) for name in ("output", "leave"))
        return cls(
            (output[0], output[1], output[2]),
            (inner[0], inner[1]),
            (outer[0], outer[1], outer[2]),
            (leave[0], leave[1], leave[2]),
        )
