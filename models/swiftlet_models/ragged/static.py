"""Runs a network on static batches: each bucket has its own buffers, and on a GPU a CUDA graph.

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

from swiftlet_models.ragged.buckets import choose
from swiftlet_models.ragged.layout import Layout, Ragged, Sizes, attends_to_all
from swiftlet_models.ragged.network import Network

log = logging.getLogger(__name__)

WARM_UPS = 2  # calls before a capture: libraries choose their kernels and take their workspaces


class StaticBatch:
    """The buffers of a bucket: pinned memory on the host, and memory of the device."""

    def __init__(
        self, network: Network, device: torch.device, sizes: Sizes, longest: int, output: Tensor, memory: Any = None
    ) -> None:
        """Captures the network on the current stream of a CUDA device, which must not be the default one.

        Libraries keep a workspace for each stream, so graphs that run at the same time must have been captured on
        different streams.

        Args:
            network: the network, which must have static shapes.
            device: the device that it is on.
            sizes: the capacity of the batch.
            longest: the length of the longest sequence that may come.
            output: where the outputs go, (at least N, O). Batches that never run at the same time may share it.
            memory: the pool that the graphs of a runner share.
        """
        self._network = network
        is_cuda = device.type == "cuda"
        host = torch.zeros(sizes.numbers, dtype=torch.int32, pin_memory=is_cuda)
        self._host = Layout(host, sizes, min(longest, sizes.tokens))
        self._inputs = self._host.to(device)
        self._output = output[: sizes.focus]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._copied: torch.cuda.Event | None = None
        if is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            for _ in range(WARM_UPS):
                self._compute()
            self._graph = torch.cuda.CUDAGraph()
            # Other threads may compute meanwhile, for models that are served already. By default, a capture forbids
            # them to take memory.
            stream = torch.cuda.current_stream(device)
            with torch.cuda.graph(self._graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
                self._compute()

    def _compute(self) -> None:
        self._output.copy_(self._network(self._inputs))

    def run(self, batch: Ragged) -> Tensor:
        """Returns the outputs at the batch's positions, on the device. They hold until `output` is used again."""
        if self._copied is not None:
            self._copied.synchronize()  # an earlier call may have failed before the device had read its ids
        self._host.write(batch)
        self._inputs.buffer.copy_(self._host.buffer, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._compute()
        return self._output[: len(batch.focus)]


class StaticRunner:
    """The static batches of a network. One call runs at a time."""

    def __init__(
        self, network: Network, device: torch.device, sizes: Iterable[Sizes], longest: int, max_bytes: int
    ) -> None:
        """Makes a static batch of each size, as long as they fit into the memory.

        The largest is made first, because smaller ones use its memory again. Those that do not fit are left out.

        Args:
            network: the network, which must have static shapes if there are sizes.
            device: the device that it is on.
            sizes: the buckets.
            longest: the length of the longest sequence that may come.
            max_bytes: memory that the static batches may take on a CUDA device.
        """
        self._network, self._device, self._longest = network, device, longest
        self._batches: dict[Sizes, StaticBatch] = {}
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.synchronize(device)  # the weights come on another stream
        # In the type of rows, which the copy in a graph converts to. Those over a vocabulary would take much memory.
        dtype = torch.float32 if network.outputs < network.vocabulary else network.dtype
        self._output = torch.empty(0, network.outputs, dtype=dtype, device=device)
        wanted = sorted(sizes, key=lambda bucket: (bucket.tokens, bucket.focus), reverse=True)
        with self.stream():
            self._make(wanted, max_bytes)
        if len(self._batches) < len(wanted):
            log.warning("%d of %d sizes of batches have no CUDA graph", len(wanted) - len(self._batches), len(wanted))

    def _make(self, wanted: Iterable[Sizes], max_bytes: int) -> None:
        before = memory_taken(self._device)
        for sizes in wanted:
            made = self._try(sizes)
            if made is not None and memory_taken(self._device) - before <= max_bytes:
                self._batches[sizes], self._output = made
                continue
            if made is not None:
                log.info("%s has no static batch: it takes more than %d bytes", sizes, max_bytes)
            made = None
            self._free_cached()

    def _try(self, sizes: Sizes) -> tuple[StaticBatch, Tensor] | None:
        """Returns a static batch and the tensor of its outputs, or None if it cannot be made."""
        output = self._output
        try:
            if len(output) < sizes.focus:
                output = output.new_empty(sizes.focus, self._network.outputs)
            return StaticBatch(self._network, self._device, sizes, self._longest, output, self._pool), output
        except RuntimeError as error:  # of torch's memory, of a library's, or of the capture
            log.info("%s has no static batch: %s", sizes, error)
            return None

    def _free_cached(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def clear(self) -> None:
        """Gives up the static batches and their memory."""
        self._batches = {}
        self._output = self._output[:0].clone()

    def stream(self) -> AbstractContextManager[object]:
        """Returns the context for calls and the work on their outputs: a CUDA stream of this runner."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @property
    def sizes(self) -> list[Sizes]:
        """The sizes of the static batches, smallest first."""
        return list(reversed(self._batches))

    def run(self, batch: Ragged) -> Tensor | None:
        """Returns the outputs at the batch's positions (N, O), which hold until the next call; None if none fits."""
        size = choose(Sizes.of(batch), self.sizes) if attends_to_all(batch) else None
        return None if size is None else self._batches[size].run(batch)


def memory_taken(device: torch.device) -> int:
    """Returns the memory that this process has taken on a CUDA device, in bytes."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
