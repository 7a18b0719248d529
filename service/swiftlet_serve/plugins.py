"""Plug-ins: modules of a package, loaded by name. The file `engines/echo.py` defines the engine `echo`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType

from swiftlet_serve.errors import SetupError


def names(package: ModuleType) -> list[str]:
    """Returns the sorted names of a package's plug-ins, without importing them."""
    return list(_names(tuple(package.__path__)))


@cache
def _names(folders: tuple[str, ...]) -> list[str]:
    names = (module.name for module in pkgutil.iter_modules(folders))
    return sorted(name for name in names if not name.startswith("_"))


def load(package: ModuleType, name: str) -> ModuleType:
    """Imports a plug-in.

    Raises:
        SetupError: there is no such plug-in, or a package that it needs is not installed.
    """
    kind = package.__name__.rpartition(".")[2]
    if name not in names(package):
        raise SetupError(f"There is no {name!r} in {kind}. Choose one of {', '.join(names(package))}.")
    try:
        return import_module(f"{package.__name__}.{name}")
    except ModuleNotFoundError as error:
        raise SetupError(f"{name!r} in {kind} needs the package {error.name!r}. Install it.") from error
