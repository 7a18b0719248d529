"""Chromium, controlled with Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.fakes import PATIENCE_S

expect.set_options(timeout=1000 * PATIENCE_S)  # as the other waits: the machine may be busy
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
def tab(browser: Browser, **options: Any) -> Iterator[Page]:
    """Opens an empty page with cookies, permissions and settings of its own. That takes a second of CPU time."""
    context = browser.new_context(**{"locale": "en-GB"} | options)
    context.set_default_timeout(1000 * PATIENCE_S)
    try:
        yield context.new_page()
    finally:
        context.close()


@contextmanager
def visit(page: Page, url: str) -> Iterator[Page]:
    """Loads an address. Asserts at the end that the page requested no other host and broke no policy.

    The playground stores nothing, which a test shows, so that its tests can use one page in turn.
    """
    host = url.split("#")[0]
    violations: list[str] = []
    requests: list[str] = []
    watches: dict[Any, Callable[[Any], None]] = {
        "pageerror": lambda error: violations.append(str(error)),
        "console": lambda message: violations.append(message.text) if "Content Security" in message.text else None,
        "request": lambda request: requests.append(request.url),
        "dialog": lambda dialog: violations.append(dialog.message),
    }
    for event, watch in watches.items():
        page.on(event, watch)
    try:
        page.goto(url)
        yield page
    finally:
        page.goto("about:blank")
        page.context.clear_permissions()
        for event, watch in watches.items():
            page.remove_listener(event, watch)
    assert violations == []
    assert [one for one in requests if not one.startswith((host, f"blob:{host}"))] == []


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """Loads an address in a page of its own, as `tab` and `visit` do."""
    with tab(browser, **options) as page, visit(page, url):
        yield page
