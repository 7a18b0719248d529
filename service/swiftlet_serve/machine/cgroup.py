"""The control groups of this process, such as a container or a service of systemd."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path("/")


def folders(controller: str, root: Path = ROOT) -> list[Path]:
    """Returns the folders of this process's control group and of its ancestors, whose limits hold as well.

    Args:
        controller: what is limited, such as `memory` or `cpu`. In version 1, each controller has its own folders.
        root: has the folders `proc` and `sys`.
    """
    paths: dict[str, str] = {}
    for line in lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    mount = root / "sys/fs/cgroup"
    base = mount / controller if controller in paths else mount
    own = base / paths.get(controller, paths.get("", ""))
    if not own.is_relative_to(base) or not own.is_dir():  # a container sees its own group as the root
        own = base
    chain = [own, *own.parents]
    return chain[: chain.index(base) + 1]


def lines(file: Path) -> list[str]:
    """Returns the lines of a file; none if it cannot be read."""
    try:
        return file.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
