"""The documentation of the API in the page, in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from swiftlet_serve.http.gate.api_keys import make_key
from tests.http.playground.test_playground import in_a_browser
from tests.support.artifacts import HEADS, make_artifact
from tests.support.browsing import visit, visiting
from tests.support.processes import Process, serving
from tests.support.tiers import first

pytestmark = in_a_browser


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("models")
    return ",".join(str(make_artifact(directory, task).path) for task in HEADS)


def open_reference(page: Page) -> Any:
    page.locator("#to-api").click()
    expect(page.locator("#reference")).to_be_visible()
    return page.locator("#reference")


def download(page: Page) -> Any:
    with page.expect_download() as found:
        page.get_by_role("link", name="Download as OpenAPI (JSON)").click()
    return json.loads(Path(found.value.path()).read_text("utf-8"))


def test_reference_describes_every_route(english: Page, server: Process) -> None:
    with visit(english, server.url) as page:
        reference = open_reference(page)
        document = download(page)
        expected = [f"{method.upper()} {path}" for path, all_ in document["paths"].items() for method in all_]

        assert len(expected) > 30
        assert sorted(reference.locator("h4").all_inner_texts()) == sorted(expected)
        assert sorted(reference.locator("nav a").all_inner_texts()) == sorted(expected)
        anchors = reference.locator("nav a").evaluate_all("links => links.map((link) => link.hash.slice(1))")
        assert len(set(anchors)) == len(anchors)
        assert set(anchors) == set(reference.locator("section").evaluate_all("all => all.map((one) => one.id)"))
        classify = reference.locator("#api-classify-post")
        fields = classify.locator("tbody th code").all_inner_texts()
        assert fields.count("inputs.text") == 1  # of an input, and of a list of inputs
        assert {"inputs", "inputs.text_pair", "parameters.top_k", "label", "score"} <= set(fields)
        row = classify.locator("tr", has=page.get_by_text("parameters.top_k", exact=True))
        expect(row).to_contain_text("integer 1–1000")
        expect(row).to_contain_text("Number of labels to return")
        expect(classify.locator("pre")).to_contain_text("A warm, funny and clever film.")
        classify.get_by_text("Errors", exact=True).click()
        expect(classify).to_contain_text("Unprocessable content")


def test_reference_has_an_address_for_each_route(english: Page, server: Process) -> None:
    with visit(english, f"{server.url}/#api-qa-post") as page:
        expect(page.locator("#api-qa-post")).to_be_in_viewport()
        expect(page.locator("#api-qa-post")).to_be_focused()
        expect(page.locator("#served")).to_be_hidden()
        expect(page.locator("#to-api")).to_have_attribute("aria-current", "page")
        page.locator("#reference nav").get_by_role("link", name="GET /models", exact=True).press("Enter")
        expect(page.locator("#api-models-get")).to_be_focused()
        page.go_back()
        expect(page.locator("#api-qa-post")).to_be_in_viewport()
        page.locator("#to-try").click()
        expect(page.locator("#reference")).to_be_hidden()
        expect(page.locator("#served")).to_be_visible()


def test_reference_works_with_api_keys(english: Page, models: str, tmp_path: Path) -> None:
    key, line = make_key("alice")
    (tmp_path / "keys").write_text(line)
    options = "--models", models, "--api-keys-file", str(tmp_path / "keys")
    with serving(tmp_path, *options) as server, visit(english, f"{server.url}/#api") as page:
        expect(page.locator("#key")).to_be_focused()
        expect(page.locator("#reference")).to_be_hidden()
        page.keyboard.type(key)
        page.keyboard.press("Enter")
        expect(page.locator("#reference h4").first).to_have_text("POST /classify")
        assert download(page)["openapi"].startswith("3.")
        expect(page.locator("#api-classify-post pre")).to_contain_text("X-API-Key: $API_KEY")
        assert key not in page.content()


@pytest.mark.parametrize(
    ("locale", "scheme", "width"),
    first([("en-GB", "light", 1200), ("ko-KR", "dark", 320)], ("ko-KR", "dark", 320)),
)
def test_reference_is_accessible_in_both_languages(
    locale: str, scheme: Any, width: int, browser: Browser, server: Process
) -> None:
    options = {"locale": locale, "color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    with visiting(browser, server.url, **options) as page:
        reference = open_reference(page)
        expect(reference.locator("h2")).to_contain_text("API 문서" if locale == "ko-KR" else "API documentation")
        top_k = reference.locator("#api-classify-post tr", has=page.get_by_text("parameters.top_k", exact=True))
        expect(top_k).to_contain_text("돌려줄 결과의 수" if locale == "ko-KR" else "Number of labels")
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#language").select_option("en")
        expect(reference.locator("h2")).to_contain_text("API documentation")
