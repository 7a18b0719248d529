"""Finds the GPUs that the torch engine uses. A slice of a GPU (MIG) counts as a device.

Devices have the names that `CUDA_VISIBLE_DEVICES` understands: an index, or the UUID that `nvidia-smi -L` prints.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from swiftlet_serve.errors import SetupError

log = logging.getLogger(__name__)

CUDA_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
ENGINE: Final = "torch"  # the only one that runs on GPUs
NAME: Final = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


def find_devices(engine: str, named: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns the devices to use: the named ones, or by default all that this process may use.

    Args:
        engine: the name of the engine. None but torch uses devices.
        named: names from the settings; empty: all.
        environment: environment variables. `CUDA_VISIBLE_DEVICES` limits the devices if none are named.

    Raises:
        SetupError: a name is invalid or occurs twice, or the engine uses no devices.
    """
    if engine != ENGINE:
        if named:
            raise SetupError(f"The setting `devices` is for the engine {ENGINE}. The engine {engine} uses no GPU.")
        return []
    for name, count in Counter(named).items():
        if not NAME.fullmatch(name):
            raise SetupError(f"{name!r} in the setting `devices` is no index and no UUID of a GPU or a MIG slice.")
        if count > 1:
            raise SetupError(f"The setting `devices` names the device {name} twice.")
    if named:
        return list(named)
    if CUDA_VISIBLE_DEVICES in environment:
        return _visible(environment[CUDA_VISIBLE_DEVICES])
    return list(_installed())


def _visible(value: str) -> list[str]:
    """Returns the devices of the value of `CUDA_VISIBLE_DEVICES`. CUDA ignores the first invalid name and the rest."""
    names: list[str] = []
    for name in value.split(","):
        if not NAME.fullmatch(name.strip()) or name.strip() in names:
            break
        names.append(name.strip())
    return names


def _installed() -> Iterator[str]:
    """Yields the UUIDs of all GPUs, or of their slices where a GPU is divided. Yields none without NVIDIA's driver."""
    try:
        import pynvml  # of the package nvidia-ml-py
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError as error:
                log.warning("GPU %d is left out: %s", index, error)
                continue
            yield from _slices(pynvml, gpu) if _is_divided(pynvml, gpu) else [pynvml.nvmlDeviceGetUUID(gpu)]
    finally:
        pynvml.nvmlShutdown()


def _is_divided(nvml: Any, gpu: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:  # this kind of GPU has no slices
        return False


def _slices(nvml: Any, gpu: Any) -> Iterator[str]:
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        with suppress(nvml.NVMLError):  # there is no slice in this place
            yield nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
