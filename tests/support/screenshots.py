"""Takes the screenshots of the playground in the documentation: `PYTHONPATH=. python tests/support/screenshots.py`.

Needs Chromium and a Korean font, such as Debian's fonts-nanum. The server runs the bundled models.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page

from tests.support.browsing import chromium, locate
from tests.support.paths import ROOT
from tests.support.processes import serving

PICTURES = ROOT / "docs/pictures"
BUNDLED_OPTIONS = ("--engine", "native", "--models", "", "--spare-engine", "false")
TASKS = ("classify", "qa", "fill-mask")
REQUESTS = 2  # per task, so that the status shows statistics
COLOURS = 64
KOREAN = "지루하고 최악의 영화였다"  # "It was a dull film, the worst": not for an English model
DESKTOP = {"width": 1100, "height": 1300}

SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "playground": ("qa", {"color_scheme": "light", "locale": "en-GB", "viewport": DESKTOP}),
    "playground-korean": ("classify", {"color_scheme": "dark", "locale": "ko-KR", "viewport": DESKTOP}),
    "playground-narrow": (
        "fill-mask",
        {"color_scheme": "light", "locale": "en-GB", "viewport": {"width": 390, "height": 1180}},
    ),
    "playground-api": ("", {"color_scheme": "light", "locale": "en-GB", "viewport": DESKTOP}),
}
"""The task and the browser options of each screenshot. Without a task, it shows the documentation of the API."""


def ask(page: Page, task: str, text: str | None = None) -> None:
    """Submits the example of a task, or a text."""
    page.locator(f"#tab-{task}").click()
    if text is not None:
        page.locator(f"#form-{task} [name=text]").fill(text)
    with page.expect_response("**/status"):  # requested after the response is shown
        page.locator(f"#form-{task} .buttons button").first.click()


def shoot(page: Page, name: str) -> None:
    """Writes a screenshot with few colours, which keeps the file small."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    path = locate()
    if path is None:
        raise SystemExit("Chromium is not installed.")
    PICTURES.mkdir(exist_ok=True)
    with serving(Path(), *BUNDLED_OPTIONS) as server, chromium(path) as browser:
        for name, (task, options) in SHOTS.items():
            page = browser.new_page(**options)
            page.goto(server.url)
            page.locator("#served").wait_for()
            for other in TASKS * REQUESTS:
                ask(page, other)
            if task:
                ask(page, task, KOREAN if "korean" in name else None)
                page.locator(f"#panel-{task} .code summary").click()
            else:
                page.goto(f"{server.url}/#api-classify-post")
            shoot(page, name)
            page.close()


if __name__ == "__main__":
    main()
