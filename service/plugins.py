"""A plug-in is a module of a package, and its file is its registration: service/engines/echo.py *is* engine `echo`."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

from swiftlet_serve.service.errors import SetupError


def names(package: ModuleType) -> list[str]:
    """The plug-ins of a package, sorted. None of them is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def load(package: ModuleType, name: str) -> ModuleType:
    """Imports the one plug-in chosen.

    Raises:
        SetupError: there is no such plug-in, or something it needs is not installed.
    """
    kind = package.__name__.rpartition(".")[2]
    if name not in names(package):
        raise SetupError(f"There is no {name!r} in {kind}: choose one of {', '.join(names(package))}.")
    try:
        return import_module(f"{package.__name__}.{name}")
    except ModuleNotFoundError as error:
        raise SetupError(f"{name!r} of {kind} needs the package {error.name!r}, which is not installed.") from error
