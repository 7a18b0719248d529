"""Extras: sets of packages in pyproject.toml that some commands need in addition to `swiftlet serve`.

Messages name the packages, not Swiftlet's extras: Swiftlet is in no index, where anybody could claim its name.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

from swiftlet_serve.errors import SetupError

DISTRIBUTION: Final = "swiftlet-serve"
NAME: Final = re.compile(r"[\w.-]+")
EXTRA: Final = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")


def packages(extra: str) -> dict[str, str]:
    """Returns the requirement of each package of an extra, as the metadata of the installation (PEP 508) lists them.

    Raises:
        ValueError: there is no such extra.
    """
    from importlib import metadata  # a worker process, which needs no package, starts faster without it

    extras = {
        name[0]: line.partition(";")[0].strip()
        for line in metadata.requires(DISTRIBUTION) or []
        if (name := NAME.match(line)) and (marker := EXTRA.search(line)) and marker[1] == extra
    }
    if not extras:
        raise ValueError(f"{DISTRIBUTION} has no extra {extra!r}.")
    return extras


def installation(*extras: str) -> str:
    """Returns the command that installs the missing packages of extras, or all if none is missing."""
    wanted = {name: requirement for extra in extras for name, requirement in packages(extra).items()}
    missing = [requirement for name, requirement in wanted.items() if not _is_installed(name)]
    return f"pip install {shlex.join(missing or wanted.values())}"


def require(*extras: str) -> None:
    """Checks that the packages of extras are installed, without importing them.

    Commands call it before their work, because many packages are imported only at the end.

    Raises:
        SetupError: a package is not installed.
    """
    for extra in extras:
        for package in packages(extra):
            if not _is_installed(package):
                raise SetupError(f"The package {package!r} is not installed. Run: {installation(*extras)}")


def _is_installed(package: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
