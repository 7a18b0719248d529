"""Languages of the page and of models, in a browser: notices, examples and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.http.playground.test_playground import ask, in_a_browser, result
from tests.support.artifacts import HEADS, make_artifact, reseal
from tests.support.browsing import tab, visit, visiting
from tests.support.processes import Process
from tests.support.tiers import first

KOREAN = "지루하고 최악의 영화였다"
MODELS = {
    "english": ("en",),
    "korean": ("ko",),
    "both": ("en", "ko"),
    "unknown": (),
    "japanese": ("ja",),
    "odd": ("qxx",),
}

pytestmark = in_a_browser


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("models")
    paths = [
        reseal(make_artifact(directory, "classify", name), languages=languages) for name, languages in MODELS.items()
    ]
    return ",".join(map(str, [*paths, *(make_artifact(directory, task).path for task in HEADS if task != "classify")]))


@pytest.fixture(scope="module")
def own_tab(browser: Browser) -> Iterator[Page]:
    with tab(browser, locale="ko-KR") as page:
        yield page


@pytest.fixture
def korean(own_tab: Page, server: Process) -> Iterator[Page]:
    with visit(own_tab, server.url) as page:
        page.locator("#served").wait_for()
        yield page


TEXTS = [  # a model, a text, and the script that the notice names
    ("english", KOREAN, "Hangul"),
    ("english", "Скучный и худший фильм", "Cyrillic"),
    ("english", "つまらない映画だった", "Hiragana"),
    ("english", "ውብ ፊልም ነው", "another script"),
    ("english", "A dull film 지루하고", None),
    ("english", "서울!", None),  # three letters or fewer say little
    ("english", "Ein langweiliger Film", None),  # the script is that of English
    ("english", "12345 🙂🙂🙂 ... ===", None),
    ("english", "", None),
    ("korean", KOREAN, None),
    ("korean", "大韓民國", None),
    ("korean", "A dull film", "Latin"),
    ("japanese", "つまらない映画だった", None),
    ("japanese", KOREAN, "Hangul"),
    ("both", KOREAN, None),
    ("both", "A dull film", None),
    ("both", "Скучный и худший фильм", "Cyrillic"),
    ("unknown", KOREAN, None),
    ("odd", KOREAN, None),
]


def test_page_notices_a_text_of_another_language(opened: Page) -> None:
    notice = opened.locator("#panel-classify .notice")
    for model, text, script in TEXTS:
        opened.locator("#classify-model").select_option(model)
        opened.locator("#classify-text").fill(text)

        if script is None:
            expect(notice, f"{model}: {text}").to_have_text("")
            expect(notice, f"{model}: {text}").to_be_hidden()
        else:
            expect(notice, f"{model}: {text}").to_contain_text(f"written in {script},")
            expect(notice, f"{model}: {text}").to_be_visible()


def test_notice_follows_the_model_and_both_texts(korean: Page) -> None:
    notice = korean.locator("#panel-classify .notice")
    korean.locator("#classify-text").fill(KOREAN)
    expect(notice).to_contain_text("영어")
    expect(notice).to_contain_text("한글")
    korean.locator("#classify-model").select_option("korean")
    expect(notice).to_have_text("")
    korean.locator("#classify-model").select_option("english")
    korean.locator("#classify-text").fill("fine")
    expect(notice).to_have_text("")
    korean.locator("#classify-text_pair").fill(KOREAN)
    expect(notice).to_contain_text("한글")
    assert ask(korean, "classify").status == 200  # a notice refuses nothing


def test_card_shows_the_languages(opened: Page) -> None:
    opened.locator("#classify-model").select_option("both")
    expect(opened.locator("#card dt:text('Languages') + dd")).to_have_text("English, Korean")
    expect(opened.locator("#classify-about")).to_have_text("English, Korean · 48 tokens · fp32")
    opened.locator("#classify-model").select_option("unknown")
    expect(opened.locator("#card dt:text('Languages')")).to_have_count(0)


def test_examples_are_in_the_languages_of_the_model_and_the_page(korean: Page) -> None:
    text, gloss = korean.locator("#classify-text"), korean.locator("#panel-classify .gloss")
    for model, is_korean in (("english", False), ("korean", True), ("both", True), ("unknown", True)):
        korean.locator("#classify-model").select_option(model)
        expect(text).to_have_value(re.compile("^[가-힣]" if is_korean else "^The soup"))
        expect(gloss).to_have_text("" if is_korean else re.compile("예문의 뜻: 수프는"))

    korean.locator("#language").select_option("en")
    expect(text).to_have_value(re.compile("^The soup"))  # of a model whose languages are not known
    korean.locator("#classify-model").select_option("korean")
    expect(text).to_have_value(re.compile("^수프는"))
    expect(gloss).to_contain_text("Meaning of the example: The soup was cold")
    text.fill("mine")
    expect(gloss).to_have_text("")
    korean.locator("#classify-model").select_option("english")
    expect(text).to_have_value("mine")  # only an example is replaced


def test_korean_page_is_korean_for_every_task(korean: Page) -> None:
    korean.locator("#classify-model").select_option("unknown")
    for task in HEADS:
        korean.locator(f"#tab-{task}").click()
        panel = korean.locator(f"#panel-{task}")
        for field in panel.locator("textarea, form > input").all():
            value = field.input_value()
            assert not value or re.search("[가-힣]", value), task
        for hint in panel.locator(".controls .hint").all():
            assert re.search("[가-힣]", hint.text_content() or ""), hint.get_attribute("data-parameter")
        assert ask(korean, task).status == 200


def test_korean_page_explains_errors_in_korean(korean: Page) -> None:
    for task, fields, sentence in (
        ("classify", {"text": " "}, "텍스트가 비어 있습니다."),
        ("fill-mask", {"text": "a"}, "마스크가 없습니다."),
    ):
        response = ask(korean, task, **fields)
        problem = result(korean, task).locator(".problem")
        expect(problem.locator("p").first).to_contain_text(sentence)
        expect(problem.locator("[lang=en]")).to_have_text(response.json()["detail"])
        expect(problem).to_contain_text(response.json()["code"])
        expect(korean.locator("#announcement")).to_contain_text(sentence)
    korean.locator("#language").select_option("en")
    expect(result(korean, "fill-mask").locator(".problem p").first).to_contain_text("The text has no [MASK] token")


@pytest.mark.parametrize(("scheme", "width"), first([("light", 1200), ("dark", 320)], ("dark", 320)))
def test_unfolded_page_with_a_notice_is_accessible(scheme: Any, width: int, browser: Browser, server: Process) -> None:
    options = {"locale": "ko-KR", "color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    with visiting(browser, server.url, **options) as page:
        assert ask(page, "classify", text=KOREAN).status == 200
        expect(page.locator("#history li")).to_have_count(1)
        expect(page.locator("#panel-classify .notice")).to_be_visible()
        for summary in page.locator("#panel-classify summary").all():
            summary.click()
        expect(page.locator("#panel-classify details[open]")).to_have_count(3)
        expect(page.locator("#panel-classify .code pre")).to_be_visible()
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("place", ["#form-classify .about", "#panel-classify .problem", "#key-form .buttons"])
def test_boxes_and_buttons_have_space_around_them(place: str, english: Page, server: Process) -> None:
    with visit(english, server.url) as page:
        page.locator("#served").wait_for()
        ask(page, "classify", text=" ")
        page.evaluate("document.getElementById('key-form').hidden = false")
        expect(page.locator(place)).to_be_visible()
        gap = page.locator(place).evaluate(
            "box => box.getBoundingClientRect().top - "
            "(box.previousElementSibling ?? box.parentElement.previousElementSibling).getBoundingClientRect().bottom"
        )
        assert gap >= 4
