"""The environment of a measurement: machine, date, commit and package versions."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from swiftlet_serve import build_info
from swiftlet_serve.machine.cores import usable_cores

ROOT: Final = Path(__file__).resolve().parents[3]
VECTOR_INSTRUCTIONS: Final = {"avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"}
PACKAGES: Final = ("swiftlet-serve", "onnxruntime", "fastapi", "uvloop")


@dataclass(frozen=True)
class Environment:
    date: str
    commit: str
    machine: str
    cores: int
    load: float  # load average of the last minute before the measurement
    versions: dict[str, str]

    def description(self, besides: str = ", generator included") -> str:
        """Returns the environment as sentences."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.date}, commit {self.commit}. {self.machine}{besides}; load {self.load:.1f}. {versions}."


def current_environment(*packages: str) -> Environment:
    """Returns the current environment. `packages` are further packages to list."""
    cores = usable_cores()
    return Environment(
        f"{datetime.now(UTC):%Y-%m-%d}",
        _commit() or "unknown",
        f"{processor()}, {cores} cores, {platform.system()}",
        cores,
        os.getloadavg()[0],
        {"Python": platform.python_version()} | {name: metadata.version(name) for name in (*PACKAGES, *packages)},
    )


def load_warnings(load: float, cores: int) -> list[str]:
    """Returns a warning if the machine was busy before a measurement began."""
    if load <= cores / 2:
        return []
    return [f"The machine was busy: the load average was {load:.1f} on {cores} cores before the measurement."]


def processor() -> str:
    """Returns the processor's name and the vector instructions that decide the speed of int8."""
    facts = _cpuinfo()
    if not facts:
        return platform.processor() or platform.machine()
    flags = set(facts.get("flags", "").split()) & VECTOR_INSTRUCTIONS
    return " ".join([facts.get("model name", platform.machine()), *sorted(flags)])


def _commit() -> str:
    """Returns the description of the current commit, or the revision of what is installed."""
    if not (ROOT / ".git").exists():  # git would describe any repository around the installation
        return build_info.revision()
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603  # ours
    except OSError:
        return ""


def _cpuinfo() -> dict[str, str]:
    """Returns the entry of the last core in /proc/cpuinfo, or nothing if the file does not exist."""
    try:
        pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs if value.strip()}
    except OSError:
        return {}
