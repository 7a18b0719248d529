"""Chromium, controlled with Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

OPTIONS = (
    "--no-sandbox",  # CI is root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def locate() -> str | None:
    """Returns the path of Chromium; None if it is not installed."""
    return shutil.which("chromium")


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Starts a browser and closes it at the end of the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()
