"""The part of a layer with a bottleneck that follows its attention, as one kernel reads its weights.

It is MobileBERT's: a product and a residual, J feed-forward networks with ReLU, and the product that leaves the layer,
each with a gain for its residual instead of a norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from swiftlet_models.folded import Array, Folded
from swiftlet_models.program import Multiply
from swiftlet_models.ragged.plan import NarrowLayer


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

    @classmethod
    def of(cls, layer: NarrowLayer, folded: Folded, to_device: Callable[[Array], Tensor]) -> FeedForward:
        """Puts the weights of a layer on a device.

        Args:
            layer: the steps.
            folded: the network that the layer belongs to.
            to_device: puts an array on the device.
        """

        def weights(steps: Sequence[Multiply]) -> tuple[Tensor, Tensor]:
            products = [folded.product(step.product) for step in steps]
            return stacked([product.weight.T for product in products]), stacked([product.bias for product in products])

        def gains(steps: Sequence[Multiply]) -> Tensor:
            return stacked([folded.vectors[step.gain] for step in steps if step.gain])

        def stacked(arrays: Sequence[Array]) -> Tensor:
            return to_device(np.stack(arrays)).contiguous()

        inner, outer = zip(*layer.networks, strict=True)
        output, leave = ([part[0] for part in (*weights([step]), gains([step]))] for step in (layer.first, layer.last))
        return cls(
            (output[0], output[1], output[2]),
            weights(inner),
            (*weights(outer), gains(outer)),
            (leave[0], leave[1], leave[2]),
        )
