"""Chromium, controlled with Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.fakes import PATIENCE_S

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


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """Opens the page. Asserts at the end that it requested no other host and broke no policy."""
    context = browser.new_context(**{"locale": "en-GB"} | options)
    context.set_default_timeout(1000 * PATIENCE_S)
    page = context.new_page()
    host = url.split("#")[0]
    violations: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: violations.append(str(error)))
    page.on("console", lambda message: violations.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: requests.append(request.url))
    page.on("dialog", lambda dialog: violations.append(dialog.message))
    try:
        page.goto(url)
        yield page
    finally:
        context.close()
    assert violations == []
    assert [one for one in requests if not one.startswith((host, f"blob:{host}"))] == []
