"""The architectures without their networks: `descriptions.bert` is `architectures/bert.py`, imported without torch.

The server describes architectures and has no torch. A module can be imported under two names; under this one it leaves
out its network, which is what `describing` tells it.
"""

from __future__ import annotations

from swiftlet_models import architectures

__path__ = architectures.__path__


def describing(module: str) -> bool:
    """Returns whether a module of this name is imported as a description, without its network."""
    return module.startswith(f"{__name__}.")
