"""Takes the pictures of the page that the README shows: `PYTHONPATH=. python tests/support/screenshots.py`.

Needs Chromium, and a font that has Korean, such as Debian's fonts-nanum. The server is one with the embedded models.
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
EMBEDDED = ("--engine", "native", "--models", "", "--spare-engine", "false")
TASKS = ("classify", "qa", "fill-mask")
ASKED = 5  # times, so that there is something to tell of how the server does
COLOURS = 64
WIDE = {"width": 1100, "height": 1300}
NARROW = {"width": 390, "height": 1180}

SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "playground": ("qa", {"color_scheme": "light", "locale": "en-GB", "viewport": WIDE}),
    "playground-korean": ("classify", {"color_scheme": "dark", "locale": "ko-KR", "viewport": WIDE}),
    "playground-narrow": (
        "fill-mask",
        {"color_scheme": "light", "locale": "en-GB", "viewport": NARROW},
    ),
}
"""Of each picture the task, and what the browser is like."""


def ask(page: Page, task: str) -> None:
    """Sends the example of a task."""
    page.locator(f"#tab-{task}").click()
    with page.expect_response("**/status"):  # which the page asks for once it has shown the answer
        page.locator(f"#form-{task} .buttons button").first.click()


def shoot(page: Page, name: str) -> None:
    """Writes what the page looks like, in few colours, which makes the file small."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    path = locate()
    if path is None:
        raise SystemExit("Chromium is not installed.")
    PICTURES.mkdir(exist_ok=True)
    with serving(Path(), *EMBEDDED) as server, chromium(path) as browser:
        for name, (task, options) in SHOTS.items():
            page = browser.new_page(**options)
            page.goto(server.url)
            page.locator("#served").wait_for()
            for other in (*TASKS * ASKED, task):
                ask(page, other)
            shoot(page, name)
            page.close()


if __name__ == "__main__":
    main()
