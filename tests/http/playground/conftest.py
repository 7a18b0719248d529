"""The page in a browser, of a server of a module's models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browsing import chromium, locate, tab, visit
from tests.support.processes import Process, serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(str(locate())) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(models: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("server"), "--models", models) as server:
        yield server


@pytest.fixture(scope="module")
def english(browser: Browser) -> Iterator[Page]:
    with tab(browser) as page:
        yield page


@pytest.fixture
def opened(english: Page, server: Process) -> Iterator[Page]:
    with visit(english, server.url) as page:
        page.locator("#served").wait_for()
        yield page
