"""Executor over several devices. Each device has a worker process that hosts all models."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Unavailable, engine_unavailable
from swiftlet_serve.types import BatchResult, Cost, TimedCall
from swiftlet_serve.workers.process_executor import ProcessExecutor


@dataclass
class Device:
    """A device, and the calls that run on it."""

    executor: ProcessExecutor
    calls: Counter[str] = field(default_factory=Counter)  # by model
    tokens: int = 0

    def has_room(self, model: str) -> bool:
        """Returns whether a call of the model could start now."""
        limit = self.executor.cost(model).max_calls or self.executor.size
        return self.executor.ready and self.calls.total() < self.executor.size and self.calls[model] < limit


class DeviceExecutor:
    """Runs each batch on the device with the fewest tokens in progress.

    A device that is lost takes its own calls with it. While its process starts again, the other devices do its work.
    """

    def __init__(self, executors: Sequence[ProcessExecutor]) -> None:
        """`executors` has one executor for each device, all with the same engine, models and size."""
        self.devices = [Device(executor) for executor in executors]
        self.size = sum(executor.size for executor in executors)
        self._call_ended = asyncio.Event()
        self._finishing: dict[asyncio.Task[None], str] = {}  # by task: the model that it removes

    @property
    def restarts(self) -> int:
        return sum(device.executor.restarts for device in self.devices)

    @property
    def kernel_faults(self) -> int:
        return sum(device.executor.kernel_faults for device in self.devices)

    @property
    def workers(self) -> Mapping[str, int]:
        numbered = enumerate(self.devices, 1)
        return {f"{role} {n}": pid for n, device in numbered for role, pid in device.executor.workers.items()}

    @property
    def ready(self) -> bool:
        return any(device.executor.ready for device in self.devices)

    def runtime(self, model: str) -> str:
        return f"{self.devices[0].executor.runtime(model)} on {len(self.devices)} devices"

    def load(self) -> None:
        """Blocks until the worker processes are ready.

        Raises:
            ArtifactError, SetupError: one of the processes cannot load these models. The message is its own.
        """
        for device in self.devices:
            device.executor.load()

    def abandon(self) -> None:
        """Kills the worker processes before `open` was called."""
        for device in self.devices:
            device.executor.abandon()

    def cost(self, model: str) -> Cost:
        cost = self.devices[0].executor.cost(model)
        return cost if cost.max_calls is None else replace(cost, max_calls=cost.max_calls * len(self.devices))

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return self.devices[0].executor.timed_calls(model)

    async def open(self) -> None:
        for device in self.devices:
            await device.executor.open()

    async def add_model(self, model: str, path: Path) -> None:
        """Loads the model on all devices, or on none if one of them cannot load it, or if the caller is cancelled."""
        if pending := [task for task, other in self._finishing.items() if other == model]:
            await asyncio.wait(pending)  # it would remove the new entry from the devices that it has yet to reach
        adding = [asyncio.ensure_future(device.executor.add_model(model, path)) for device in self.devices]
        try:
            await asyncio.wait(adding)
            for task in adding:
                task.result()
        except BaseException:
            for task in adding:
                task.cancel()
            await self._finish(model, self._undo(model, adding))
            raise

    async def _undo(self, model: str, adding: Sequence[asyncio.Task[None]]) -> None:
        """Removes a model from the devices that have loaded it, once no device loads it any more."""
        results = await asyncio.gather(*adding, return_exceptions=True)
        loaded = [device for device, result in zip(self.devices, results, strict=True) if result is None]
        await self._remove(model, loaded)

    async def remove_model(self, model: str) -> None:
        await self._finish(model, self._remove(model, self.devices))

    async def _remove(self, model: str, devices: Sequence[Device]) -> None:
        for device in devices:
            await device.executor.remove_model(model)

    async def _finish(self, model: str, work: Coroutine[None, None, None]) -> None:
        """Waits for the removal of a model, which goes on if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._finishing[task] = model
        task.add_done_callback(self._finishing.pop)
        await asyncio.shield(task)

    def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> asyncio.Future[BatchResult]:
        device = self._choose(model)
        if device is None:
            return asyncio.ensure_future(self._run_when_ready(model, encodings, timeout_s))
        return self._run_on(device, model, encodings, timeout_s)

    async def close(self, grace_s: float) -> bool:
        """Kills the worker processes, even if calls are running."""
        return all(await asyncio.gather(*(device.executor.close(grace_s) for device in self.devices)))

    def _choose(self, model: str) -> Device | None:
        """Returns the device with the fewest tokens in progress, or None if no device has room."""
        with_room = [device for device in self.devices if device.has_room(model)]
        return min(with_room, key=lambda device: device.tokens, default=None)

    async def _run_when_ready(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> BatchResult:
        while (device := self._choose(model)) is None:
            if self.ready:  # the calls that a lost device would run are too many for the others
                self._call_ended.clear()
                await self._call_ended.wait()
            else:
                await self._wait_until_ready()
        return await self._run_on(device, model, encodings, timeout_s)

    async def _wait_until_ready(self) -> None:
        """Waits until one device is ready. Raises Unavailable if none can be expected soon."""
        waiting = [asyncio.ensure_future(device.executor.wait_until_ready()) for device in self.devices]
        try:
            for ready in asyncio.as_completed(waiting):
                with suppress(Unavailable):
                    await ready
                    return
            raise engine_unavailable()
        finally:
            for task in waiting:
                task.cancel()

    def _run_on(
        self, device: Device, model: str, encodings: Sequence[Encoding], timeout_s: float
    ) -> asyncio.Future[BatchResult]:
        tokens = sum(len(encoding.input_ids) for encoding in encodings)
        device.calls[model] += 1
        device.tokens += tokens
        call = device.executor.run(model, encodings, timeout_s)
        call.add_done_callback(partial(self._on_call_end, device, model, tokens))
        return call

    def _on_call_end(self, device: Device, model: str, tokens: int, _: object) -> None:
        device.calls[model] -= 1
        device.tokens -= tokens
        self._call_ended.set()
