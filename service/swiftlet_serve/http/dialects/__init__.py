"""The dialects: the protocols of other servers, whose clients work unchanged. Each dialect is a module.

A dialect module defines the members of `Dialect` in `http/dialect_parts/dialect.py`. It translates a request into one
of ours, and our answer and errors back. It runs nothing itself: deadlines, admission, limits and statistics apply to
all requests alike. No other file lists the dialects: to add a dialect, add a file to this package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import cast

from swiftlet_serve import plugins
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.dialect_parts.dialect import Dialect
from swiftlet_serve.settings import Settings


def names() -> list[str]:
    """Returns the names of all dialects, sorted. Imports none of them."""
    return [name.replace("_", "-") for name in plugins.names(sys.modules[__name__])]


def load(name: str, settings: Settings | None = None) -> Dialect:
    """Imports the dialect of this name, with the routes of the settings, or of the default ones.

    Raises:
        SetupError: the dialect does not exist.
    """
    if name not in names():
        raise SetupError(f"There is no dialect {name!r}. The dialects are {', '.join(names())}.")
    module = plugins.load(sys.modules[__name__], name.replace("-", "_"))
    configure: Callable[[Settings], Dialect] | None = getattr(module, "configure", None)
    return cast(Dialect, module) if configure is None else configure(settings or Settings())
