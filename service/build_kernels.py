"""Compiles the native engine's kernels, one library for each instruction set, and the library of word pieces.

    python service/build_kernels.py [DIRECTORY]

hatchling calls `Hook` for each wheel. CXX names the C++ compiler, and CXXFLAGS has further options for it. A library
that does not compile, as without a compiler, is left out, and the server does without it. The libraries do not use
Python's C API, so one wheel serves every Python.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("service/swiftlet_serve/native", "models/swiftlet_models/native")
MACOS: Final = "11.0"  # the first version for ARM
COMMON: Final = ("-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared", "-s")
AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-w")
KERNELS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma"),
        "avxvnni": ("-mavx2", "-mfma", "-mavxvnni"),
        "avx512vnni": AVX512,
        "avx512bf16": (*AVX512, "-mavx512bf16"),
        "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        "word_pieces": ("-mpopcnt",),  # NumPy needs it, too
    },
    "aarch64": {
        "neon": ("-march=armv8.2-a+dotprod",),
        "neon_i8mm": ("-march=armv8.2-a+i8mm",),
        "word_pieces": (),
    },
}
"""The options of each library, by the machine that it is for."""


class Hook(BuildHookInterface[Any]):
    """Compiles the kernels into the source tree, from where an editable installation loads them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the kernels, and names the wheel for this platform.

        Raises:
            RuntimeError: Swiftlet does not run on this platform.
        """
        del version
        if (reason := refusal(sys.platform, platform.machine(), platform.libc_ver()[0])) is not None:
            raise RuntimeError(reason)
        compile_kernels()
        build_data["pure_python"] = False
        # A Python for macOS calls itself universal, and may be built for a later version than the kernels.
        system = f"macosx_{MACOS}_arm64" if sys.platform == "darwin" else sysconfig.get_platform()
        build_data["tag"] = f"py3-none-{system.replace('-', '_').replace('.', '_')}"

    def clean(self, versions: list[str]) -> None:
        """Removes the libraries."""
        del versions
        for folder in FOLDERS:
            for library in (ROOT / folder).glob("*.so"):
                library.unlink()


def refusal(system: str, machine: str, libc: str) -> str | None:
    """Returns why Swiftlet does not run on a platform; None if it may.

    Args:
        system: the operating system, as in `sys.platform`.
        machine: the architecture, as in `platform.machine`.
        libc: the C library, as in `platform.libc_ver`.
    """
    if system == "win32":
        return "Swiftlet does not run on Windows. Install it in the Windows Subsystem for Linux, or run its image."
    if system == "linux" and libc != "glibc":
        return (
            "Swiftlet needs Linux with glibc, as ONNX Runtime does. This system has another C library, such as musl of "
            "Alpine. Use an image such as python:3.11-slim, or Swiftlet's own."
        )
    if system == "darwin" and machine != "arm64":
        return "Swiftlet runs on Macs with Apple silicon only, as ONNX Runtime does."
    if system == "linux" and machine not in KERNELS:
        return f"Swiftlet runs on {' and '.join(KERNELS)}. This machine is {machine or 'unknown'}."
    return None


def compile_kernels(directory: Path | None = None) -> None:
    """Compiles the libraries of this machine, two at a time. Warns of those that do not compile.

    They lie beside their sources, or in the directory, by the package that they belong to.
    """
    machine = platform.machine()
    kernels = KERNELS.get("aarch64" if machine == "arm64" else machine, {})  # the second is its name in macOS
    with ThreadPoolExecutor(2) as threads:
        failed = [
            error for error in threads.map(lambda name: _compile(name, kernels[name], directory), kernels) if error
        ]
    for error in failed:
        print(f"A kernel is left out: {error}", file=sys.stderr)


def _compile(kernel: str, options: Sequence[str], directory: Path | None) -> str | None:
    """Compiles a library, and returns the reason if that fails. Processes that have loaded the old one keep it."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    source = next(path for folder in FOLDERS if (path := ROOT / folder / f"{kernel}.cpp").is_file())
    target = source.parent if directory is None else directory.joinpath(*source.parent.parts[-2:])
    target.mkdir(parents=True, exist_ok=True)
    part, library = target / f"{kernel}.part", target / f"{kernel}.so"
    system = (f"-mmacosx-version-min={MACOS}",) if sys.platform == "darwin" else ()
    options = (*COMMON, *system, *options, *shlex.split(os.environ.get("CXXFLAGS", "")))
    command = [*compiler, *options, str(source), "-o", str(part)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        return f"{kernel}: {error}"
    if done.returncode:
        return f"{kernel}: {done.stderr.strip().splitlines()[0] if done.stderr else done.returncode}"
    part.rename(library)
    return None


if __name__ == "__main__":
    compile_kernels(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
