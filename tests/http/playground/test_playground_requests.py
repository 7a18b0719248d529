"""The page's requests in a browser: their parameters, pairs, code, JSON and history."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from swiftlet_serve.http.gate.api_keys import make_key
from tests.http.playground.test_playground import ask, in_a_browser, result
from tests.support.artifacts import make_artifact
from tests.support.browsing import visit, visiting
from tests.support.fakes import PATIENCE_S
from tests.support.processes import Process, serving
from tests.support.tiers import first

SERVED = ("classify", "embed", "score", "entities", "fill-mask", "qa")
HOSTILE = 'it\'s "so" $HOME `id` \\n %s 🙂 {x}\nsecond line <b>'
RUNNERS = {
    "curl": ["bash", "-c"],
    "Python": [sys.executable, "-c"],
    "JavaScript": ["node", "--input-type=module", "-e"],
}

pytestmark = in_a_browser


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("models")
    served = [str(make_artifact(directory, task).path) for task in SERVED]
    return ",".join([*served, str(make_artifact(directory, "classify", "other-classify").path)])


def unfold(page: Page, task: str, part: str) -> Any:
    """Opens a folded part of a panel."""
    page.locator(f"#tab-{task}").click()
    page.locator(f"#panel-{task} .{part} > summary").click()
    return page.locator(f"#panel-{task} .{part}")


def sent(response: Any) -> Any:
    return json.loads(response.request.post_data)


def run_code(page: Page, task: str, language: str, **variables: str) -> Any:
    """Runs the code that the page shows for the request in the form. Returns its output as JSON."""
    code = page.locator(f"#panel-{task} .code")
    code.get_by_role("button", name=language, exact=True).click()
    expect(code.get_by_role("button", name=language, exact=True)).to_have_attribute("aria-pressed", "true")
    source = code.locator("pre").evaluate("shown => shown.textContent")
    if language == "JavaScript":
        source = source.replace(
            "console.log(await response.json())", "console.log(JSON.stringify(await response.json()))"
        )
    if language == "Python":
        source = f"import json\n{source.replace('print(response.json())', 'print(json.dumps(response.json()))')}"
    ran = subprocess.run(
        [*RUNNERS[language], source],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env=os.environ | variables,
    )
    return json.loads(ran.stdout)


@pytest.mark.parametrize("language", first(RUNNERS, "JavaScript", "Python"))
def test_code_sends_the_request_of_the_form(language: str, opened: Page) -> None:
    if shutil.which(RUNNERS[language][0]) is None:
        pytest.skip(f"{RUNNERS[language][0]} is not installed")
    answer = ask(opened, "classify", text=HOSTILE, text_pair="b's").json()
    unfold(opened, "classify", "code")
    assert run_code(opened, "classify", language) == answer

    opened.locator("#form-classify [name=text_pair]").fill("")  # the code follows the form
    assert run_code(opened, "classify", language) == ask(opened, "classify").json() != answer


def test_code_has_the_parameters_as_values_of_the_language(opened: Page) -> None:
    ask(opened, "score", text="a b c", prompt="")
    unfold(opened, "score", "parameters")
    opened.locator("#score-parameter-return_tokens").select_option("true")
    unfold(opened, "score", "code")
    answer = ask(opened, "score").json()

    assert answer["tokens"] if isinstance(answer, dict) else answer[0]["tokens"]
    assert run_code(opened, "score", "Python") == answer
    assert '"return_tokens": True' in opened.locator("#panel-score .code pre").inner_text()


def test_code_names_a_variable_in_place_of_the_api_key(english: Page, models: str, tmp_path: Path) -> None:
    key, line = make_key("alice")
    (tmp_path / "keys").write_text(line)
    options = "--models", models, "--api-keys-file", str(tmp_path / "keys")
    with serving(tmp_path, *options) as server, visit(english, server.url) as page:
        page.locator("#key").fill(key)
        page.keyboard.press("Enter")
        answer = ask(page, "classify", text="fine").json()
        unfold(page, "classify", "code")
        for language in RUNNERS:
            if shutil.which(RUNNERS[language][0]):
                assert run_code(page, "classify", language, API_KEY=key) == answer
        assert key not in page.content()
        expect(page.locator("#panel-classify .code")).to_contain_text("environment variable API_KEY")


def test_code_can_be_copied(opened: Page) -> None:
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = unfold(opened, "classify", "code")
    code.get_by_role("button", name="Copy").click()
    expect(opened.locator("#announcement")).to_have_text("Copied.")
    shown = code.locator("pre").evaluate("shown => shown.textContent")
    assert opened.evaluate("navigator.clipboard.readText()") == shown


def test_copying_works_without_a_clipboard(browser: Browser, server: Process) -> None:
    """A page that is not served over HTTPS has none."""
    with visiting(browser, server.url) as page:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        code = unfold(page, "classify", "code")
        code.get_by_role("button", name="Copy").click()
        expect(page.locator("#announcement")).to_have_text("Copied.")
        assert page.evaluate("getSelection().toString()").startswith("curl ")


def test_page_sends_the_parameters_that_are_set(opened: Page) -> None:
    controls = unfold(opened, "classify", "parameters")
    names = controls.locator("label code").all_inner_texts()
    assert names == ["top_k", "function_to_apply", "truncation", "window"]
    assert sent(ask(opened, "classify", text="a"))["parameters"] == {"top_k": 5}

    controls.locator("[name='parameters.top_k']").fill("1")
    controls.locator("[name='parameters.function_to_apply']").select_option("none")
    controls.locator("[name='parameters.truncation']").select_option("false")
    response = ask(opened, "classify", text="a")
    assert sent(response)["parameters"] == {"top_k": 1, "function_to_apply": "none", "truncation": False}
    expect(result(opened, "classify").locator(".bars").first.locator("li")).to_have_count(1)

    controls.locator("[name='parameters.top_k']").fill("0")
    refused = ask(opened, "classify", text="a")
    assert refused.status == 422
    expect(result(opened, "classify")).to_contain_text("/parameters/top_k")


def test_page_offers_every_value_of_a_parameter(opened: Page) -> None:
    unfold(opened, "classify", "parameters")
    for value, expected in (("window", "window"), ("false", False)):
        opened.locator("#classify-parameter-truncation").select_option(value)
        assert sent(ask(opened, "classify", text="a"))["parameters"]["truncation"] == expected


def test_page_sends_lists_and_vectors_in_base64(opened: Page) -> None:
    unfold(opened, "entities", "parameters")
    opened.locator("#entities-parameter-ignore_labels").fill("O, LOC")
    assert sent(ask(opened, "entities", text="clara"))["parameters"] == {"ignore_labels": ["O", "LOC"]}

    floats = result(opened, "embed").locator(".bars").first.locator(".number")
    ask(opened, "embed", text="a b", others="a c\nd")
    expect(floats).to_have_count(2)
    before = floats.all_inner_texts()
    unfold(opened, "embed", "parameters")
    opened.locator("#embed-parameter-encoding_format").select_option("base64")
    answer = ask(opened, "embed").json()
    assert all(isinstance(vector, str) for vector in answer)
    expect(result(opened, "embed").locator("details pre")).to_contain_text(answer[0])
    assert floats.all_inner_texts() == before
    opened.locator("#embed-parameter-encoding_format").select_option("uint8")
    assert max(ask(opened, "embed").json()[0]) > 127
    assert [float(one) for one in floats.all_inner_texts()] == pytest.approx(list(map(float, before)), abs=0.02)


def test_page_draws_tokens_that_are_not_grouped(opened: Page) -> None:
    unfold(opened, "entities", "parameters")
    opened.locator("#entities-parameter-aggregation_strategy").select_option("none")
    found = ask(opened, "entities", text="clara in bern").json()

    expect(result(opened, "entities").locator("mark sub")).to_have_text([one["entity"] for one in found])


def test_page_sends_pairs(opened: Page) -> None:
    pair = ask(opened, "classify", text="a", text_pair="b")
    assert sent(pair)["inputs"] == {"text": "a", "text_pair": "b"}
    assert sent(ask(opened, "classify", text_pair=""))["inputs"] == "a"
    continued = ask(opened, "score", prompt="a ", text="b")
    assert sent(continued)["inputs"] == {"prompt": "a ", "continuation": "b"}
    assert (pair.status, continued.status) == (200, 200)


def test_page_shows_the_response_as_json(opened: Page) -> None:
    answer = ask(opened, "fill-mask", text="a [MASK]").json()
    shown = result(opened, "fill-mask").locator("details.raw")

    expect(shown.locator("pre")).to_be_hidden()
    shown.locator("summary").click()
    expect(shown.locator("pre")).to_be_visible()
    assert json.loads(shown.locator("pre").inner_text()) == answer


def test_page_shows_the_card_of_the_chosen_model(opened: Page) -> None:
    opened.locator("#classify-model").select_option("other-classify")
    expect(opened.locator("#card strong")).to_have_text("other-classify")
    expect(opened.locator("#classify-about")).to_have_text("48 tokens · fp32")
    assert sent(ask(opened, "classify", text="a"))["model"] == "other-classify"


def test_history_opens_a_request_with_its_answer(opened: Page) -> None:
    history = opened.locator("#history")
    expect(history).to_have_text("No requests yet.")
    unfold(opened, "classify", "parameters")
    opened.locator("#classify-parameter-top_k").fill("2")
    opened.locator("#classify-model").select_option("other-classify")
    (labels,) = ask(opened, "classify", text="the first").json()
    opened.locator("#classify-parameter-top_k").fill("")
    opened.locator("#classify-model").select_option("tiny-classify")
    ask(opened, "classify", text="the second")
    assert ask(opened, "classify", text=" ").status == 422
    ask(opened, "fill-mask", text="third [MASK]")
    items = history.locator("li")
    expect(items).to_have_count(4)
    expect(items.nth(1)).to_contain_text("422 empty_input")
    expect(items.first).to_contain_text("third [MASK]")

    items.nth(3).get_by_role("button").click()
    expect(opened.locator("#tab-classify")).to_be_focused()
    expect(opened.locator("#classify-text")).to_have_value("the first")
    expect(opened.locator("#classify-model")).to_have_value("other-classify")
    expect(opened.locator("#classify-parameter-top_k")).to_have_value("2")
    expect(opened.locator("#card strong")).to_have_text("other-classify")
    shown = result(opened, "classify").locator(".bars").first.locator(".name")
    expect(shown).to_have_text([label["label"] for label in labels])

    items.nth(1).get_by_role("button").click()
    expect(result(opened, "classify")).to_contain_text("empty_input")
    history.get_by_role("button", name="Clear the history").click()
    expect(history).to_have_text("No requests yet.")
    expect(opened.locator("#history-heading")).to_be_focused()


def test_history_keeps_twenty_requests_in_memory_only(opened: Page) -> None:
    for number in range(22):
        ask(opened, "classify", text=f"text {number}")
    items = opened.locator("#history li")
    expect(items.first).to_contain_text("text 21")
    expect(items).to_have_count(20)
    stored = "[localStorage.length, sessionStorage.length, document.cookie, location.search, location.hash]"
    assert opened.evaluate(stored) == [0, 0, "", "", ""]
    opened.reload()
    expect(opened.locator("#history")).to_have_text("No requests yet.")
    assert not re.search("text 21", opened.content())
