"""The panels of entities, of labels by name, vectors, ranks and likelihoods, in a browser."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.http.playground.test_playground import ask, in_a_browser, result
from tests.support.artifacts import make_artifact

OTHERS = ("entities", "zero-shot", "embed", "rerank", "score")
LINES = ["Rain is wet. 🌧", "Bees waggle.", "꿀벌은 춤춘다"]

pytestmark = in_a_browser


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("others")
    return ",".join(str(make_artifact(directory, task).path) for task in OTHERS)


def names(page: Page, task: str) -> list[str]:
    bars = result(page, task).locator(".bars").first.locator("li")
    expect(bars.first).to_be_visible()
    found: list[str] = bars.locator(".name").all_inner_texts()
    return found


def test_page_marks_entities_behind_surrogate_pairs(opened: Page) -> None:
    text = "🙂 clara 𝒜 lives in bern"
    found = ask(opened, "entities", text=text).json()

    assert len(found) > 1
    marks = result(opened, "entities").locator("mark")
    expect(marks).to_have_count(len(found))
    for entity, mark in zip(found, marks.all(), strict=True):
        assert mark.evaluate("mark => mark.firstChild.textContent") == text[entity["start"] : entity["end"]]
        expect(mark.locator("sub")).to_have_text(entity["entity_group"])
    assert len(names(opened, "entities")) == len(found)
    colours = {
        (entity["entity_group"], mark.evaluate("mark => getComputedStyle(mark).backgroundColor"))
        for entity, mark in zip(found, marks.all(), strict=True)
    }
    assert len(colours) == len(dict(colours)) == len({colour for _, colour in colours}) > 1


def test_page_shows_the_labels_that_the_user_names(opened: Page) -> None:
    found = ask(opened, "zero-shot", text="a phone", candidate_labels="one, two , 셋").json()

    assert names(opened, "zero-shot") == [one["label"] for one in found]
    assert {one["label"] for one in found} == {"one", "two", "셋"}


def test_page_offers_an_embedding_model_for_its_other_tasks(opened: Page) -> None:
    opened.locator("#tab-rerank").click()
    options = opened.locator("#form-rerank select[name=model] option")
    assert options.all_inner_texts() == ["tiny-rerank (default)", "tiny-embed"]
    opened.locator("#form-rerank select[name=model]").select_option("tiny-embed")
    found = ask(opened, "rerank", query="bees", texts="\n".join(LINES)).json()

    assert names(opened, "rerank") == [LINES[one["index"]] for one in found]
    expect(opened.locator("#card")).to_contain_text("embed, rerank, zero-shot")


def test_page_ranks_texts(opened: Page) -> None:
    found = ask(opened, "rerank", query="bees", texts="\n".join([*LINES, " "])).json()

    assert names(opened, "rerank") == [LINES[one["index"]] for one in found]


def test_page_compares_vectors(opened: Page) -> None:
    vector, *vectors = ask(opened, "embed", text=LINES[1], others="\n".join(LINES)).json()

    assert names(opened, "embed") == LINES
    shown = result(opened, "embed").locator(".bars").first.locator(".number").all_inner_texts()
    cosines = [sum(a * b for a, b in zip(vector, other, strict=True)) for other in vectors]
    assert shown == [f"{cosine:.3f}" for cosine in cosines]
    assert shown[1] == "1.000"


def test_page_shows_a_likelihood(opened: Page) -> None:
    found = ask(opened, "score", text="a ferry").json()
    perplexity = found["perplexity"] if isinstance(found, dict) else found[0]["perplexity"]

    expect(result(opened, "score").locator("dd").nth(1)).to_have_text(f"{perplexity:,.1f}")


@pytest.mark.parametrize("task", OTHERS)
def test_example_of_a_task_can_be_sent(task: str, opened: Page) -> None:
    opened.locator(f"#tab-{task}").click()
    with opened.expect_response(f"**/{task}") as answered:
        opened.locator(f"#form-{task} .buttons button").first.click()

    assert answered.value.status == 200
    expect(result(opened, task).locator("h3").first).to_be_visible()
    assert Axe().run(opened).violations_count == 0
