"""Compiles the kernels and the word pieces for tests. The results stay in `build/kernels` until the sources change."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from swiftlet_serve.engines import _kernel_selection
from tests.support.paths import ROOT

SOURCES: Final = Path(_kernel_selection.LIBRARIES)
WORD_PIECES: Final = ROOT / "models/swiftlet_models/native"
EMULATION: Final = Path(__file__).parent / "emulation"
STORE: Final = ROOT / "build/kernels"


def compile_kernels(compiler: str, options: Sequence[str], to: Path) -> Path:
    """Writes what a compiler makes. It is a copy, because a process loads a file once, with its variables."""
    portable = [option.replace(str(ROOT), "") for option in options]  # a copy of `build` serves in another checkout
    key = hashlib.sha256("\0".join([_version(compiler), _sources(), *portable]).encode()).hexdigest()[:20]
    stored = STORE / key
    STORE.mkdir(parents=True, exist_ok=True)
    with stored.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may compile the same
        if not stored.exists():
            new = stored.with_suffix(".new")
            subprocess.run([compiler, *options, "-o", str(new)], check=True, timeout=500)
            new.rename(stored)
    return Path(shutil.copy(stored, to))


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout


@cache
def _sources() -> str:
    files = sorted(file for folder in (SOURCES, WORD_PIECES, EMULATION) for file in folder.glob("*.[ch]*"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
