"""Takes the pictures of the page that the README shows, in .github/page: `PYTHONPATH=. python tests/screenshots.py`.

Needs Chromium, and a font that has Korean, such as Debian's fonts-nanum. The server is one with the embedded models.
"""

from __future__ import annotations

from pathlib import Path

from browsing import chromium, locate
from playwright.sync_api import Page
from processes import serving

PICTURES = Path(__file__).parent.parent / ".github/page"
EMBEDDED = ("--engine", "onnx_cpu", "--models", "", "--spare-engine", "false")


def ask(page: Page, task: str) -> None:
    """Sends the example of a task, three times, so that the server's state shows something."""
    page.locator(f"#tab-{task}").click()
    for _ in range(3):
        with page.expect_response(f"**/{task}"):
            page.locator(f"#form-{task} .buttons button").first.click()
        page.locator(f"#panel-{task} .result dl").wait_for()


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    shots = [
        ("qa-light", {"color_scheme": "light", "locale": "en-GB", "viewport": {"width": 1100, "height": 1150}}, "qa"),
        (
            "classify-dark",
            {"color_scheme": "dark", "locale": "ko-KR", "viewport": {"width": 1100, "height": 1000}},
            "classify",
        ),
        (
            "fill-mask-narrow",
            {"color_scheme": "light", "locale": "en-GB", "viewport": {"width": 390, "height": 1150}},
            "fill-mask",
        ),
    ]
    with serving(Path(), *EMBEDDED) as server, chromium(locate()) as browser:
        for name, options, task in shots:
            page = browser.new_page(**options)
            page.goto(server.url)
            page.locator("#served").wait_for()
            for other in ("classify", "qa", "fill-mask"):
                ask(page, other)
            page.locator(f"#tab-{task}").click()
            with page.expect_response("**/status"):
                pass
            page.screenshot(path=PICTURES / f"{name}.png")
            page.close()


if __name__ == "__main__":
    main()
