"""The networks. The file is the registration: `models/architectures/bert.py` is architecture "bert".

Every architecture module gives `Config` (a frozen dataclass), `Encoder` (a module from tokens to hidden states), and
how transformers writes the same thing down: `NAMES` of parameters, settings that are `FIXED` because nothing else is
built or `IMPLIED` by their absence, and parameters that may be `UNREAD` or are `TRANSPOSED`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from swiftlet_serve.models.architectures import layers

_HELPERS = frozenset({"layers"})


class Architecture(Protocol):
    """One module of this package."""

    Config: type[Any]
    Encoder: Callable[[Any], layers.Encoder]
    NAMES: Sequence[tuple[str, str]]
    FIXED: Mapping[str, Any]
    IMPLIED: Mapping[str, Any]
    UNREAD: Sequence[str]
    TRANSPOSED: Sequence[str]


def names() -> list[str]:
    """The architectures there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _HELPERS)


def load(name: str) -> Architecture:
    """One architecture's module.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in names():
        raise ValueError(f"architecture {name!r} is not one of {', '.join(names())}.")
    module: Any = importlib.import_module(f"{__name__}.{name}")
    architecture: Architecture = module
    return architecture
