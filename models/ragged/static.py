"""Runs a network on static batches: each bucket has buffers of its own, and a CUDA graph where there is a GPU.

A CUDA graph launches all kernels of a network at once. Launches one by one take longer than the kernels themselves if
the hidden states are narrow: MobileBERT has about 300 of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from swiftlet_serve.models.ragged.buckets import choose
from swiftlet_serve.models.ragged.layout import Layout, Ragged, Sizes
from swiftlet_serve.models.ragged.network import Network

log = logging.getLogger(__name__)

WARM_UPS = 2  # calls before a capture: libraries choose their kernels and take their workspaces


class StaticBatch:
    """The buffers of a bucket: pinned ones on the host, those of the device, and the network's output."""

    def __init__(self, network: Network, device: torch.device, sizes: Sizes, longest: int, memory: Any) -> None:
        """Captures the network on the current stream of a CUDA device, which must not be the default one.

        `memory` is the pool that the graphs of a runner share. Libraries keep a workspace for each stream, so graphs
        that run at the same time must have been captured on different streams.
        """
        self._network, self._device = network, device
        pinned = device.type == "cuda"
        host = torch.zeros(sizes.numbers, dtype=torch.int32, pin_memory=pinned)
        self._host = Layout(host, sizes, min(longest, sizes.tokens))
        self._inputs = self._host.to(device)
        self._graph = None
        if device.type == "cuda":
            for _ in range(WARM_UPS):
                network(self._inputs)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=memory, stream=torch.cuda.current_stream(device)):
                self._output = network(self._inputs)

    def run(self, batch: Ragged) -> Tensor:
        """Returns the outputs at the batch's positions, on the device. They hold until the next call."""
        self._host.write(batch)
        self._inputs.buffer.copy_(self._host.buffer, non_blocking=True)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._output = self._network(self._inputs)
        return self._output[: len(batch.focus)]


class StaticRunner:
    """The static batches of a network. One call runs at a time."""

    def __init__(
        self, network: Network, device: torch.device, sizes: Iterable[Sizes], longest: int, max_bytes: int
    ) -> None:
        """Makes a static batch of each size, as long as they fit into the memory.

        Args:
            network: the network, which must have static shapes.
            device: the device that it is on.
            sizes: the buckets, smallest first.
            longest: the length of the longest sequence that may come.
            max_bytes: memory that the static batches may take on a CUDA device.
        """
        self._batches: dict[Sizes, StaticBatch] = {}
        self._stream = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if device.type == "cuda"
            else None
        )
        memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        before = _memory(device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the weights come on another stream
        with self.stream():
            for one in sizes:
                if _memory(device) - before > max_bytes:
                    log.info("no more static batches than %d: their memory is full", len(self._batches))
                    break
                try:
                    self._batches[one] = StaticBatch(network, device, one, longest, memory)
                except torch.OutOfMemoryError:
                    log.warning("no more static batches than %d: the device has no more memory", len(self._batches))
                    torch.cuda.empty_cache()
                    break

    def stream(self) -> AbstractContextManager[object]:
        """Returns the context in which calls and the work on their outputs run: a CUDA stream of the runner's own."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @property
    def sizes(self) -> list[Sizes]:
        """The sizes of the static batches."""
        return list(self._batches)

    def run(self, batch: Ragged) -> Tensor | None:
        """Returns the outputs at the batch's positions (N, O), which hold until the next call; None if none fits."""
        size = choose(Sizes.of(batch), self.sizes)
        return None if size is None else self._batches[size].run(batch)


def _memory(device: torch.device) -> int:
    """Returns the memory that this process has taken on a CUDA device, in bytes."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
