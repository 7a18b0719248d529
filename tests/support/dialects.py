"""The routes of the dialects."""

from __future__ import annotations

from swiftlet_serve import tasks
from swiftlet_serve.http import dialects


def dialect_routes(*, shared: bool = False) -> dict[tuple[str, str], bool]:
    """Returns the method and the path of each route, and whether it needs no API key.

    With `shared`, the routes that a dialect shares with a task are included.
    """
    spoken = [dialects.load(name) for name in dialects.names()]
    operations = {
        ("POST", operation.path): False
        for dialect in spoken
        for operation in dialect.OPERATIONS
        if shared or operation.path.strip("/") not in tasks.names()
    }
    return operations | {
        (page.method, page.path): page.public for dialect in spoken for page in getattr(dialect, "PAGES", ())
    }
