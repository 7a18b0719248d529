"""The selection of the kernels that serve on this machine."""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.types import EARLIER_WRONG_SUMS

log = logging.getLogger(__name__)

LIBRARIES: Final = Path(__file__).parents[1] / "native"
KERNELS: Final = ("amx", "avx512bf16", "avx512vnni", "avxvnni", "avx2", "neon_i8mm", "neon")  # the fastest first
CHOICE: Final = "SWIFTLET_NATIVE_KERNEL"  # the environment variable that selects a kernel
TEST_SECONDS: Final = 0.25  # of the self-test


class Selection(NamedTuple):
    """The kernels that serve on this machine."""

    library: Library | None
    passed_over: tuple[str, ...]  # faster kernels that do not serve, with the reasons


def best() -> Library | None:
    """Returns the fastest kernels that serve on this machine, or None if no kernels do."""
    return select().library


def select() -> Selection:
    """Selects the kernels that the environment variable names, or else the fastest compiled ones that work here.

    A kernel that this CPU lacks is passed over silently, unless the variable names it.
    """
    named = os.environ.get(CHOICE)
    passed_over = [f"{named}: {CHOICE} names no kernel"] if named and named not in KERNELS else []
    for kernel in sorted(KERNELS, key=lambda name: name != named):
        library = _library(kernel)
        if library is not None and library.supported:
            obstacle = _obstacle(library)
            if obstacle is None:
                return Selection(library, tuple(passed_over))
            passed_over.append(f"{kernel}: {obstacle}")
        elif kernel == named:
            reason = "it is not compiled for this platform" if library is None else "the CPU lacks its instructions"
            passed_over.append(f"{kernel}: {reason}")
    return Selection(None, tuple(passed_over))


def _library(kernel: str) -> Library | None:
    """Returns the compiled library of a kernel; None if this platform and version have no such library."""
    file = LIBRARIES / f"{kernel}.so"
    if not file.exists():
        return None
    try:
        return Library(file)
    except OSError:  # of another platform
        return None
    except AttributeError:
        _warn_of_version(file)
        return None


def _obstacle(library: Library) -> str | None:
    """Returns the reason why a kernel cannot serve although the CPU has its instructions, or None."""
    if not library.permitted:
        return "the operating system does not permit AMX tiles"
    if library.tiles and os.environ.get(EARLIER_WRONG_SUMS):
        return "an earlier worker process found a wrong sum"
    if library.tiles:
        _test_once(library.file)
    if library.kernel_faults:
        return "its self-test found a wrong sum"
    return None


@cache
def _test_once(file: Path) -> None:
    Library(file).test_tiles(TEST_SECONDS)


@cache
def _warn_of_version(file: Path) -> None:
    """Logs a warning, once in a process."""
    log.warning(
        "the native engine does not use %s, which was compiled for another version of Swiftlet: install Swiftlet again",
        file.name,
    )
