"""Extras: the sets of packages in pyproject.toml that some commands need beyond those of `swiftlet serve`."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Final

from swiftlet_serve.service.errors import SetupError

DISTRIBUTION: Final = "swiftlet-serve"
NAME: Final = re.compile(r"[\w.-]+")
EXTRA: Final = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")


def packages(extra: str) -> list[str]:
    """Returns the names of an extra's packages, as the metadata of the installation (PEP 508) lists them.

    Raises:
        ValueError: there is no such extra.
    """
    found = [
        name[0]
        for line in metadata.requires(DISTRIBUTION) or []
        if (name := NAME.match(line)) and (marker := EXTRA.search(line)) and marker[1] == extra
    ]
    if not found:
        raise ValueError(f"{DISTRIBUTION} has no extra {extra!r}.")
    return found


def require(*extras: str) -> None:
    """Checks that the packages of extras are installed, without importing them.

    Commands call it before their work, because many packages are imported only at the end.

    Raises:
        SetupError: a package is not installed.
    """
    for extra in extras:
        for package in packages(extra):
            if not _is_installed(package):
                raise SetupError(
                    f"The package {package!r} is not installed. Run: pip install '{DISTRIBUTION}[{','.join(extras)}]'"
                )


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
