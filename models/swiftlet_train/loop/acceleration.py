"""Training steps as fast as the device allows, and their speed in tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from swiftlet_models.architectures.layers import Encoder
from swiftlet_train.loop.cpu_acceleration import attending_in_bf16, dropping_faster
from swiftlet_train.loop.gpu_acceleration import can_be_packed, compiled, packed


@contextmanager
def accelerated(model: nn.Module, device: torch.device, *, bf16: bool) -> Iterator[None]:
    """Makes the training steps of a model faster within the context.

    On a GPU, layers are compiled, and in bf16 without padding. On a CPU, dropout is faster, and in bf16, attention has
    scores in bf16.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    with ExitStack() as stack:
        if device.type == "cuda":
            if bf16:
                for encoder in encoders:
                    if can_be_packed(encoder):
                        stack.enter_context(packed(encoder))
            stack.enter_context(compiled(model))
        else:
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    stack.enter_context(dropping_faster(module))
            if bf16:
                for encoder in encoders:
                    if encoder.config.traits().relative is None:  # its layers add to their bias
                        stack.enter_context(attending_in_bf16(encoder))
        yield


class TokenCounter:
    """Counts the real tokens that the first encoder of a model reads in training steps, on its device."""

    def __init__(self, model: nn.Module) -> None:
        """Counts from now until `close`."""
        self._total: Tensor | int = 0
        self._encoder = next((module for module in model.modules() if isinstance(module, Encoder)), None)
        if self._encoder is not None:
            compute = self._encoder.features

            def features(input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
                if torch.is_grad_enabled():
                    self._total = self._total + mask.sum()
                return compute(input_ids, token_type_ids, mask)

            self._encoder.features = features  # type: ignore[method-assign]

    def take(self) -> int:
        """Returns the tokens since the last call. Waits for the device."""
        total, self._total = int(self._total), 0
        return total

    def close(self) -> None:
        """Leaves the encoder as it was."""
        if self._encoder is not None:
            del self._encoder.features
