"""Compiles the native engine's kernels: one library for each instruction set. hatchling calls `Hook` for each wheel.

    python service/build_kernels.py [DIRECTORY]

CXX names the C++ compiler, and CXXFLAGS has further options for it. A kernel that does not compile, as without a
compiler, is left out, and the engine does without it. The libraries do not use Python's C API, so one wheel serves
every Python.
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

SOURCES: Final = Path(__file__).parent / "swiftlet_serve/native"
COMMON: Final = ("-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared", "-s")
AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-w")
KERNELS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma"),
        "avxvnni": ("-mavx2", "-mfma", "-mavxvnni"),
        "avx512vnni": AVX512,
        "avx512bf16": (*AVX512, "-mavx512bf16"),
        "amx": (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    },
    "aarch64": {
        "neon": ("-march=armv8.2-a+dotprod",),
        "neon_i8mm": ("-march=armv8.2-a+i8mm",),
    },
}
"""The options of each kernel, by the machine that it is for."""


class Hook(BuildHookInterface[Any]):
    """Compiles the kernels into the source tree, from where an editable installation loads them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the kernels, and names the wheel for this platform."""
        del version
        compile_kernels(SOURCES)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def clean(self, versions: list[str]) -> None:
        """Removes the libraries."""
        del versions
        for library in SOURCES.glob("*.so"):
            library.unlink()


def compile_kernels(directory: Path) -> None:
    """Compiles the kernels of this machine into a directory, two at a time. Warns of those that do not compile."""
    kernels = KERNELS.get(platform.machine(), {})
    with ThreadPoolExecutor(2) as threads:
        failed = [
            error for error in threads.map(lambda name: _compile(name, kernels[name], directory), kernels) if error
        ]
    for error in failed:
        print(f"A kernel is left out: {error}", file=sys.stderr)


def _compile(kernel: str, options: Sequence[str], directory: Path) -> str | None:
    """Compiles a kernel, and returns the reason if that fails. Processes that have loaded the old library keep it."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    part, library = directory / f"{kernel}.part", directory / f"{kernel}.so"
    options = (*COMMON, *options, *shlex.split(os.environ.get("CXXFLAGS", "")))
    command = [*compiler, *options, str(SOURCES / f"{kernel}.cpp"), "-o", str(part)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        return f"{kernel}: {error}"
    if done.returncode:
        return f"{kernel}: {done.stderr.strip().splitlines()[0] if done.stderr else done.returncode}"
    part.rename(library)
    return None


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES
    target.mkdir(parents=True, exist_ok=True)
    compile_kernels(target)
