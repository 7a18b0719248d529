"""The architectures. A file is its registration: `architectures/bert.py` is architecture "bert".

An architecture file has two parts:

- The description needs no torch: `Config` (a frozen dataclass, derived from `Settings`, with its `traits()`), and
  `CHECKPOINTS`, the names and settings of transformers' checkpoints.
- The network, in the block `if not describing(__name__)`: `Encoder`, a torch module from tokens to hidden states. That
  of `standard.py` builds most networks from their traits.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from swiftlet_models.architectures.checkpoints import Checkpoints

_HELPERS: Final = frozenset({"checkpoints", "descriptions", "layers", "settings", "standard", "traits"})
_OF_OTHERS: Final = frozenset({"static"})  # networks that transformers does not have


class Description(Protocol):
    """An architecture without its network."""

    Config: type[Any]
    CHECKPOINTS: Checkpoints


class Architecture(Description, Protocol):
    """An architecture with its network."""

    Encoder: Callable[[Any], Any]


def names() -> list[str]:
    """Returns the names of all architectures, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _HELPERS)


def model_types(*, of_code: bool = True) -> list[str]:
    """Returns the names of the architectures that checkpoints of transformers have, sorted.

    Without `of_code`, those are left out whose code lies beside a checkpoint and is not part of transformers.
    """
    known = sorted({*names()} - _OF_OTHERS)
    return known if of_code else [name for name in known if not describe(name).CHECKPOINTS.said_by]


def name_of(settings: Mapping[str, Any]) -> str:
    """Returns the architecture that a `config.json` describes, which `refusal` accepts.

    It is the `model_type`, or, for a checkpoint that names code, the family that other settings tell.
    """
    for name in names() if "auto_map" in settings else ():  # to import all descriptions takes 0.3 s
        said_by = describe(name).CHECKPOINTS.said_by
        if said_by and all(settings.get(key) == value for key, value in said_by.items()):
            return name
    return str(settings["model_type"]).replace("-", "_")


def refusal(model_type: object) -> str | None:
    """Returns why checkpoints of this `model_type` cannot be converted; None if they can."""
    if isinstance(model_type, str) and model_type.replace("-", "_") in model_types():
        return None
    known = ", ".join(name.replace("_", "-") for name in model_types())
    if model_type is None:
        return f"config.json: there is no model_type. Set that of the model: {known}."
    return f"config.json: model_type {model_type!r} is not supported; supported are {known}. Fine-tune one of these."


def describe(name: str) -> Description:
    """Imports an architecture without its network, and therefore without torch.

    Raises:
        ValueError: there is no architecture of this name.
    """
    description: Any = _import("descriptions.", name)
    return description  # type: ignore[no-any-return]


def load(name: str) -> Architecture:
    """Imports an architecture with its network.

    Raises:
        ValueError: there is no architecture of this name.
    """
    architecture: Any = _import("", name)
    return architecture  # type: ignore[no-any-return]


def _import(package: str, name: str) -> Any:
    if name not in names():
        raise ValueError(f"architecture {name!r} is not one of {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{package}{name}")
