"""ARM kernels on another machine: compiled as a program that an emulator runs."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, cast

import numpy as np
import pytest

from swiftlet_serve.engines._kernel_library import Library
from tests.support.compiler import EMULATION, SOURCES, compile_kernels

EXTENSIONS: Final = {"neon": "dotprod", "neon_i8mm": "i8mm"}  # of ARMv8.2, by kernel
PROGRAM: Final = EMULATION / "remote.cpp"


def compile_program(kernel: str, to: Path) -> Path:
    """Compiles kernels for ARM, as a program. Skips the test if there is no compiler."""
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler for ARM (Debian's package g++-aarch64-linux-gnu)")
    flags = ["-std=c++17", "-O1", "-static", "-ffp-contract=off", "-w", f"-march=armv8.2-a+{EXTENSIONS[kernel]}"]
    sources = ["-I", str(SOURCES), f'-DKERNELS="{kernel}.cpp"', str(PROGRAM)]
    return compile_kernels(compiler, [*flags, *sources], to)


def emulator() -> str:
    """Returns the path of the ARM emulator. Skips the test if there is none."""
    found = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if found is None:
        pytest.skip("qemu-aarch64, which emulates ARM, is not installed (Debian's package qemu-user)")
    return found


class Remote(Library):
    """A library in another process, which `command` starts."""

    def __init__(self, *command: str) -> None:
        self.c = cast(ctypes.CDLL, Calls(*command))  # it has the same functions, in the other process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.c.close()


class Calls:
    """The functions of a program in another process. `PROGRAM` documents the protocol."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout

    def __getattr__(self, name: str) -> Callable[..., int | bytes]:
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> int | bytes:
        self._requests.write(_sized(name.encode()) + struct.pack("<Q", len(arguments)))
        for argument in arguments:
            self._requests.write(_packed(argument))
        self._requests.flush()
        result = self._read()
        for argument in arguments:
            if not isinstance(argument, int | float | None):
                left = self._read()
                if isinstance(argument, ctypes.Array):
                    ctypes.memmove(argument, left, len(left))
                elif hasattr(argument, "_obj"):  # of `byref`
                    ctypes.memmove(ctypes.addressof(argument._obj), left, len(left))
                elif isinstance(argument, np.ndarray) and argument.flags.writeable:
                    argument[...] = np.frombuffer(left, argument.dtype).reshape(argument.shape)
        return result if name == "swiftlet_kernel" else int.from_bytes(result, "little", signed=True)

    def _read(self) -> bytes:
        (size,) = struct.unpack("<Q", self._replies.read(8))
        return self._replies.read(size)

    def close(self) -> None:
        self._process.communicate()


def _sized(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def _packed(argument: Any) -> bytes:
    if argument is None or isinstance(argument, int):
        return b"i" + struct.pack("<q", argument or 0)
    if isinstance(argument, float):
        return b"f" + struct.pack("<d", argument)
    if isinstance(argument, bytes):
        return b"a" + _sized(argument + b"\0")
    if isinstance(argument, np.ndarray):
        return b"a" + _sized(argument.tobytes())
    return b"a" + _sized(bytes(getattr(argument, "_obj", argument)))  # the object that `byref` refers to
