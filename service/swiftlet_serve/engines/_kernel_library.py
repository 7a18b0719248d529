"""The kernels of one instruction set, as a library in C++."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.machine.cores import Node

TEST_ROUNDS: Final = 100
INTERFACE: Final = 12  # the version of the functions and programs in swiftlet_serve/native


def _optional(kind: Any) -> Any:
    """Returns the type of an argument that is an array, or None."""
    given = classmethod(lambda _, array: None if array is None else kind.from_param(array))
    return type("Optional", (), {"from_param": given})


_Floats = _optional(np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS"))
_Weights = _optional(np.ctypeslib.ndpointer(flags="C_CONTIGUOUS"))  # int8, or the bits of bf16
_Int32s = np.ctypeslib.ndpointer(np.int32, flags="C_CONTIGUOUS")
_Int64s = np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS")


class _Address:
    """An argument of a call: an array of the right type. numpy's own check takes longer than some calls of a head."""

    @staticmethod
    def from_param(array: NDArray[Any] | None) -> ctypes.c_void_p:
        return ctypes.c_void_p(None if array is None else array.ctypes.data)


class Library:
    """The kernels of one instruction set."""

    def __init__(self, file: Path) -> None:
        """Raises OSError if the file cannot be loaded, and AttributeError if it is another library or version."""
        self.file = file
        self.c = ctypes.CDLL(str(file))
        if self.c.swiftlet_interface() != INTERFACE:
            raise AttributeError(f"{file.name} was compiled for another version of Swiftlet")
        self.c.swiftlet_kernel.restype = ctypes.c_char_p
        model, number = ctypes.c_void_p, ctypes.c_int64
        size = ctypes.c_int
        self.c.swiftlet_create.argtypes = [size, _Int32s, number, number, size, size, ctypes.POINTER(model)]
        self.c.swiftlet_add_product.argtypes = [model, size, size, _Weights, _Floats, _Floats]
        self.c.swiftlet_set_adapters.argtypes = [model, size]
        self.c.swiftlet_add_delta.argtypes = [model, *[size] * 3, _Weights, _Weights]
        self.c.swiftlet_add_vector.argtypes = [model, number, _Floats]
        self.c.swiftlet_add_words.argtypes = [model, size, size, _Weights, _Floats]
        self.c.swiftlet_share_words.argtypes = [model, size, size]
        self.c.swiftlet_finish.argtypes = [model]
        for about in (self.c.swiftlet_model_bytes, self.c.swiftlet_outputs, self.c.swiftlet_destroy):
            about.argtypes = [model]
        self.c.swiftlet_model_bytes.restype = self.c.swiftlet_workspace_bytes.restype = number
        self.c.swiftlet_wrong_sums.restype = number
        addresses: list[Any] = [_Address] * 3
        self.c.swiftlet_run.argtypes = [model, *[number] * 4, *addresses, ctypes.POINTER(number)]
        self.c.swiftlet_set_nodes.argtypes = [size, _Int32s, size, _Int32s]
        self.c.swiftlet_peak.argtypes = [number, *[ctypes.c_void_p] * 3]
        self.c.swiftlet_peak.restype = number

    @property
    def kernel(self) -> str:
        """The name of the kernel's instruction set."""
        name: bytes = self.c.swiftlet_kernel()
        return name.decode()

    @property
    def max_inputs(self) -> int:
        """The most inputs of a product whose sums are exact."""
        count: int = self.c.swiftlet_max_inputs()
        return count

    @property
    def supported(self) -> bool:
        """Whether this CPU has the instruction set."""
        return bool(self.c.swiftlet_supported())

    @property
    def permitted(self) -> bool:
        """Whether the operating system lets this process use the instruction set's registers."""
        return bool(self.c.swiftlet_permitted())

    @property
    def tiles(self) -> bool:
        """Whether the kernel multiplies tiles."""
        return bool(self.c.swiftlet_tiles())

    @property
    def kernel_faults(self) -> int:
        """The wrong sums that this process found in tiles."""
        count: int = self.c.swiftlet_wrong_sums()
        return count

    def share_cores(self, count: int, nodes: Sequence[Node] = ()) -> None:
        """Lets all calls of this process use so many cores together. With more than one, idle cores help with calls.

        Only cores of a call's NUMA node help with it. The `nodes` of the first call with several of them count.
        """
        if len(nodes) > 1:
            node_of_cpu = np.full(1 + max(max(node.cpus) for node in nodes), -1, np.int32)
            for number, node in enumerate(nodes):
                node_of_cpu[list(node.cpus)] = number
            cores = np.array([node.cores for node in nodes], np.int32)
            self.c.swiftlet_set_nodes(len(nodes), cores, len(node_of_cpu), node_of_cpu)
        self.c.swiftlet_set_cores(count)

    def test_tiles(self, seconds: float) -> None:
        """Multiplies tiles in more threads than there are cores, so that threads interrupt each other."""
        end = time.monotonic() + seconds

        def work() -> None:
            while time.monotonic() < end and not self.c.swiftlet_test_tiles(TEST_ROUNDS):
                pass

        threads = [threading.Thread(target=work) for _ in range(2 * (os.cpu_count() or 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def multiply_at_peak(self, rounds: int) -> int:
        """Multiplies and adds at the upper bound of the kernels' speed. Returns the number of multiply-adds."""
        memory = np.ones(1 << 14, np.uint8)  # larger than the operands of a tile
        aligned = memory.ctypes.data + -memory.ctypes.data % 64
        sums = np.empty(1 << 10, np.float32)
        count: int = self.c.swiftlet_peak(rounds, aligned, aligned, sums.ctypes.data)
        return count
