"""The GPUs that the torch engine uses: from the settings, `CUDA_VISIBLE_DEVICES`, or NVIDIA's library."""

# ruff: noqa: N802  # the functions of NVIDIA's library

from __future__ import annotations

import sys

import pytest

from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.devices import find_devices


class NVMLError(Exception):
    pass


class FakeLibrary:
    """NVIDIA's library on a machine with one GPU, one that is divided into slices, and one that is lost."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, broken: bool = False) -> None:
        self._broken = broken
        self.shutdowns = 0

    def nvmlInit(self) -> None:
        if self._broken:
            raise NVMLError("the driver is not loaded")

    def nvmlShutdown(self) -> None:
        self.shutdowns += 1

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 1:
            raise NVMLError("GPU is lost")
        return ("GPU-a", "", "GPU-c")[index]

    def nvmlDeviceGetMigMode(self, gpu: str) -> tuple[int, int]:
        if gpu == "GPU-a":
            raise NVMLError("not supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: str, place: int) -> str:
        if place not in (0, 3):
            raise NVMLError("not found")
        return f"MIG-{gpu[-1]}{place}"

    def nvmlDeviceGetUUID(self, device: str) -> str:
        return device


@pytest.fixture
def library(monkeypatch):
    found = FakeLibrary()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


def test_all_gpus_and_slices_are_used(library, caplog):
    assert find_devices("torch", [], {}) == ["GPU-a", "MIG-c0", "MIG-c3"]
    assert "GPU 1 is left out: GPU is lost" in caplog.text
    assert library.shutdowns == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("-1", []),
        ("0", ["0"]),
        ("2, 0", ["2", "0"]),
        ("0,-1,1", ["0"]),
        ("1,1", ["1"]),
        ("MIG-1f/2/3,GPU-9a-b", ["MIG-1f/2/3", "GPU-9a-b"]),
    ],
)
def test_environment_limits_the_devices(value, expected, library):
    assert find_devices("torch", [], {"CUDA_VISIBLE_DEVICES": value}) == expected


def test_settings_come_first(library):
    assert find_devices("torch", ["1", "MIG-x"], {"CUDA_VISIBLE_DEVICES": "0"}) == ["1", "MIG-x"]


@pytest.mark.parametrize("library_or_none", [None, FakeLibrary(broken=True)], ids=["no package", "no driver"])
def test_no_devices_without_a_driver(library_or_none, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library_or_none)
    assert find_devices("torch", [], {}) == []


def test_other_engines_use_no_devices(library):
    assert find_devices("native", [], {}) == []
    with pytest.raises(SetupError, match="The engine native uses no GPU"):
        find_devices("native", ["0"], {})


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["0", "0"], "names the device 0 twice"),
        (["cuda:0"], "no index and no UUID"),
        (["-1"], "no index"),
        (["0 "], "no"),
    ],
)
def test_invalid_names(named, message, library):
    with pytest.raises(SetupError, match=message):
        find_devices("torch", named, {})
