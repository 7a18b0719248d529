"""The routes of the dialects."""

from __future__ import annotations

from swiftlet_serve.service.http import dialects


def dialect_routes() -> dict[tuple[str, str], bool]:
    """Returns the method and the path of each route, and whether it needs no API key."""
    spoken = [dialects.load(name) for name in dialects.names()]
    operations = {("POST", operation.path): False for dialect in spoken for operation in dialect.OPERATIONS}
    return operations | {(page.method, page.path): page.public for dialect in spoken for page in dialect.PAGES}
