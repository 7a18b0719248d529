"""Batches on several devices: each has a worker process, and the others do the work of one that is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve.errors import Unavailable, engine_unavailable
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.types import BatchResult, Cost, WorkerLost
from swiftlet_serve.workers.device_executor import DeviceExecutor
from swiftlet_serve.workers.process_executor import ProcessExecutor
from tests.support.engines.faulty import ONCE
from tests.support.fakes import PATIENCE_S, Scheduler, encoding, submit
from tests.support.tiers import first
from tests.support.workers import MODEL, ask, far_deadline, opened, rows, until


class FakeDevice:
    """A `ProcessExecutor` whose calls end when the test says so, and which counts them."""

    def __init__(self, size: int = 4, max_calls: int | None = 2) -> None:
        self.size, self.ready, self.broken = size, True, False
        self.restarts, self.kernel_faults, self.workers = 1, 2, {"serving": 7}
        self.running: list[tuple[str, asyncio.Future[BatchResult]]] = []
        self.models: list[str] = []
        self.refuses: Exception | None = None
        self._max_calls = max_calls
        self.came_back = asyncio.Event()

    def cost(self, model: str) -> Cost:
        return Cost(padded=False, call_tokens=0, max_tokens=64, max_rows=8, max_calls=self._max_calls)

    def runtime(self, model: str) -> str:
        return "fake"

    def run(self, model: str, encodings: object, timeout_s: float) -> asyncio.Future[BatchResult]:
        assert self.ready
        call = asyncio.get_running_loop().create_future()
        self.running.append((model, call))
        counts = Counter(name for name, _ in self.running)
        assert counts.total() <= self.size
        assert counts[model] <= (self._max_calls or self.size)
        return call

    def finish(self, index: int = 0) -> None:
        _, call = self.running.pop(index)
        call.set_result(BatchResult([], 0.0))

    def lose(self) -> None:
        self.ready = False
        self.came_back.clear()
        for _, call in self.running:
            call.set_exception(WorkerLost(suspect=False))
        self.running = []

    def come_back(self) -> None:
        self.ready = True
        self.came_back.set()

    async def wait_until_ready(self) -> None:
        if self.broken:
            raise engine_unavailable()
        await self.came_back.wait()

    async def add_model(self, model: str, path: Path) -> None:
        if self.refuses is not None:
            raise self.refuses
        assert model not in self.models
        self.models.append(model)

    async def remove_model(self, model: str) -> None:
        self.models.remove(model)


def start_call(executor: DeviceExecutor, tokens: int, model: str = "a") -> asyncio.Future[BatchResult]:
    return asyncio.ensure_future(executor.run(model, [encoding(1, tokens)], PATIENCE_S))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_batch_goes_to_the_device_with_the_fewest_tokens():
    devices = [FakeDevice() for _ in range(3)]
    executor = DeviceExecutor(devices)
    calls = [start_call(executor, tokens) for tokens in (30, 20, 10)]
    assert [len(device.running) for device in devices] == [1, 1, 1]
    calls.append(start_call(executor, 5))
    assert [len(device.running) for device in devices] == [1, 1, 2]
    calls.append(start_call(executor, 5))  # the last device has the fewest tokens, but two calls of the model
    assert [len(device.running) for device in devices] == [1, 2, 2]
    devices[1].finish(0)
    devices[1].finish(0)
    await turns()
    calls.append(start_call(executor, 5))
    assert [len(device.running) for device in devices] == [1, 1, 2]
    calls.append(start_call(executor, 5, "b"))
    assert [len(device.running) for device in devices] == [1, 2, 2]
    assert executor.cost("a").max_calls == 6
    assert executor.size == 12
    assert (executor.restarts, executor.kernel_faults) == (3, 6)
    assert executor.workers == {"serving 1": 7, "serving 2": 7, "serving 3": 7}
    assert executor.runtime("a") == "fake on 3 devices"


class SlowDevice(FakeDevice):
    """Takes some iterations of the event loop to add a model and to remove it."""

    async def add_model(self, model: str, path: Path) -> None:
        await turns(self.size)
        await super().add_model(model, path)

    async def remove_model(self, model: str) -> None:
        await turns(2)
        await super().remove_model(model)


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_cancelled_change_of_models_leaves_the_devices_alike(fails, cancels):
    """Wherever it is cancelled, once or twice."""
    outcomes = set()
    for iterations in range(20):
        devices = [SlowDevice(size) for size in (1, 2, 5)]
        devices[2].refuses = ArtifactError("refused") if fails else None
        executor = DeviceExecutor(devices)
        adding = asyncio.ensure_future(executor.add_model("a", Path()))
        await cancelled(adding, iterations, cancels)
        added = not adding.cancelled() and adding.exception() is None
        assert [device.models for device in devices] == [["a"] if added else []] * 3
        outcomes.add(added)
        if added:
            await cancelled(asyncio.ensure_future(executor.remove_model("a")), iterations - 7, cancels)
            assert [device.models for device in devices] == [[]] * 3
    assert outcomes == ({False} if fails else {False, True})


async def test_model_is_added_again_once_a_cancelled_removal_has_ended():
    for iterations in range(1, 8):
        devices = [SlowDevice(1) for _ in range(3)]
        executor = DeviceExecutor(devices)
        await executor.add_model("a", Path())
        removing = asyncio.ensure_future(executor.remove_model("a"))
        await turns(iterations)
        removing.cancel()
        await turns(1)
        await executor.add_model("a", Path())
        await turns(40)
        assert [device.models for device in devices] == [["a"]] * 3


async def cancelled(change: asyncio.Future[None], iterations: int, times: int) -> None:
    """Cancels a change after some iterations of the event loop, and lets everything else end."""
    await turns(iterations)
    for _ in range(times):
        change.cancel()
        await turns(1)
    await turns(40)


def test_cost_without_a_limit_of_calls_stays():
    assert DeviceExecutor([FakeDevice(max_calls=None), FakeDevice(max_calls=None)]).cost("a").max_calls is None


async def test_calls_wait_for_room_while_a_device_is_lost():
    devices = [FakeDevice(), FakeDevice()]
    executor = DeviceExecutor(devices)
    devices[1].lose()
    assert executor.ready
    calls = [start_call(executor, 5) for _ in range(4)]
    await turns()
    assert [len(device.running) for device in devices] == [2, 0]
    devices[0].finish()
    await turns()
    assert [len(device.running) for device in devices] == [2, 0]
    devices[1].come_back()
    devices[0].finish()
    await turns()
    assert [len(device.running) for device in devices] == [1, 1]
    assert [call.done() for call in calls] == [True, True, False, False]


async def test_calls_wait_for_any_device_if_all_are_lost():
    devices = [FakeDevice(), FakeDevice()]
    executor = DeviceExecutor(devices)
    for device in devices:
        device.lose()
    devices[0].broken = True
    call = start_call(executor, 5)
    await turns()
    assert not executor.ready
    assert not call.done()
    devices[1].come_back()
    await turns()
    assert [len(device.running) for device in devices] == [0, 1]

    devices[1].lose()
    devices[1].broken = True
    with pytest.raises(WorkerLost):
        await call
    with pytest.raises(Unavailable):
        await start_call(executor, 5)


@pytest.mark.parametrize("seeds", first([range(10), range(10, 40)], range(10)), ids=["first", "more"])
def test_no_call_is_forgotten_and_no_device_gets_too_many(seeds):
    async def scenario(seed: int) -> None:
        chance = random.Random(seed)
        devices = [FakeDevice(chance.randint(2, 4), chance.choice([None, 1, 2])) for _ in range(chance.randint(1, 4))]
        executor, calls = DeviceExecutor(devices), []
        for _ in range(200):
            device = chance.choice(devices)
            what = chance.random()
            if what < 0.5:
                calls.append(start_call(executor, chance.randint(1, 50), chance.choice("ab")))
            elif what < 0.8 and device.running:
                device.finish(chance.randrange(len(device.running)))
            elif what < 0.9:
                device.come_back()
            elif what < 0.95:
                device.lose()
            if chance.random() < 0.5:
                await turns(1)
        for device in devices:
            device.come_back()
        for _ in range(10 * len(calls)):
            for device in devices:
                while device.running:
                    device.finish()
            await turns(3)
        assert all(call.done() for call in calls)
        assert all(call.exception() is None or isinstance(call.exception(), WorkerLost) for call in calls)
        assert [(device.tokens, device.calls.total()) for device in executor.devices] == [(0, 0)] * len(devices)

    for seed in seeds:
        asyncio.run(scenario(seed))


async def test_model_is_added_to_all_devices_or_to_none():
    devices = [FakeDevice(), FakeDevice(), FakeDevice()]
    executor = DeviceExecutor(devices)
    await executor.add_model("b", Path())
    assert [device.models for device in devices] == [["b"]] * 3
    devices[1].refuses = ArtifactError("broken")
    with pytest.raises(ArtifactError):
        await executor.add_model("c", Path())
    assert [device.models for device in devices] == [["b"]] * 3
    await executor.remove_model("b")
    assert [device.models for device in devices] == [[]] * 3


def start_devices(directory: Path, count: int = 2) -> DeviceExecutor:
    executors = [
        ProcessExecutor(
            "faulty",
            [[directory / MODEL]],
            2,
            spare=False,
            worker_module="tests.support.worker_main",
            environment={"CUDA_VISIBLE_DEVICES": f"GPU-{n}"},
        )
        for n in range(count)
    ]
    executor = DeviceExecutor(executors)
    try:
        executor.load()
    except BaseException:
        executor.abandon()
        raise
    return executor


async def test_each_device_has_a_process_that_sees_only_it(directory):
    async with opened(start_devices(directory)) as executor:
        assert executor.timed_calls(MODEL) == []
        for n, pid in enumerate(executor.workers.values()):
            assert f"CUDA_VISIBLE_DEVICES=GPU-{n}" in Path(f"/proc/{pid}/environ").read_text().split("\0")


async def test_killed_device_loses_no_request(directory):
    async with opened(start_devices(directory)) as executor:
        scheduler = Scheduler(Dispatcher(executor), MODEL)
        hanging = asyncio.ensure_future(submit(scheduler, encoding(ONCE), far_deadline()))
        await until((directory / "once").exists)
        (busy,) = (device for device in executor.devices if device.tokens)
        idle = next(device for device in executor.devices if device is not busy)
        answers = asyncio.gather(*(submit(scheduler, encoding(tag), far_deadline()) for tag in range(1, 200)))
        os.kill(busy.executor.workers["serving"], signal.SIGKILL)
        assert [row.tolist() for row in await answers] == rows(*range(1, 200))
        assert (await hanging).tolist() == rows(ONCE)[0]
        assert executor.ready
        await until(lambda: busy.executor.ready)
        assert executor.restarts == 1
        os.kill(idle.executor.workers["serving"], signal.SIGKILL)
        await until(lambda: idle.executor.restarts)
        assert await ask(executor, 1) == rows(1)


def test_models_that_one_device_cannot_load_stop_the_start(directory):
    (directory / MODEL / "refuse").touch()
    with pytest.raises(ArtifactError):
        start_devices(directory)
