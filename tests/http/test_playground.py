"""The page at /: how it is sent, and what who opens it in a browser can do with it."""

from __future__ import annotations

import json
import re
import tomllib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response, expect
from starlette.testclient import TestClient

from swiftlet_serve.service.http import playground as files
from swiftlet_serve.service.http import status
from swiftlet_serve.service.http.api_keys import make_key
from swiftlet_serve.service.http.app import CORS, create_app
from swiftlet_serve.service.telemetry.request_stats import MAX_RECENT, ModelStats, RequestStats
from swiftlet_serve.service.telemetry.snapshot import QueueState, Snapshot
from tests.support.apps import TASKS, make_runtime
from tests.support.browsing import chromium, locate
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT
from tests.support.processes import Process, serving

PIECES = {path.name: path.read_text("utf-8") for path in files.DIRECTORY.iterdir() if path.suffix in files.MEDIA_TYPES}
in_a_browser = pytest.mark.skipif(locate() is None, reason="Chromium is not installed")

# How it is sent


@pytest.fixture(scope="module")
def client(artifact_dir: Path) -> Iterator[TestClient]:
    with TestClient(create_app(make_runtime(artifact_dir))) as client:
        yield client


@pytest.mark.parametrize("path", files.FILES)
def test_every_file_comes_with_what_keeps_the_page_safe(path, client):
    response = client.get(path)
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))

    assert response.status_code == 200
    assert response.headers["content-type"] in files.MEDIA_TYPES.values()
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert all(value in ("'none'", "'self'", "'script'") for value in policy.values())  # nothing inline, no other host


@pytest.mark.parametrize("path", files.FILES)
def test_a_file_is_sent_again_only_when_it_has_changed(path, client):
    first = client.get(path)
    etag = first.headers["etag"]

    assert first.headers["cache-control"] == "no-cache"
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = client.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    for other in ('"other"', etag[1:-1], ""):
        assert client.get(path, headers={"if-none-match": other}).content == first.content


def test_a_head_is_the_same_without_the_body(client):
    for path in files.FILES:
        got, head = client.get(path), client.head(path)

        assert (head.status_code, head.content) == (200, b"")
        names = set(got.headers) - {"x-request-id"}
        assert {name: head.headers[name] for name in names} == {name: got.headers[name] for name in names}


def test_every_file_goes_into_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    globs = project["tool"]["setuptools"]["package-data"]["swiftlet_serve.service"]
    packed = {path.name for glob in globs for path in (ROOT / "service").glob(glob)}

    assert set(PIECES) <= packed
    assert len(PIECES) == len(files.FILES)


def test_the_page_names_no_other_host_and_holds_nothing_that_the_policy_forbids():
    names = re.compile(r"""https?://(?!www\.w3\.org/2000/svg")|(?:src|href|import|from)\s*[=(]?\s*["']//""")
    for name, text in PIECES.items():
        assert not names.search(text), name
        assert not re.search(r"\son\w+=|style=|<script(?! type=\"module\" src=)|javascript:", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|localStorage|cookie", text), (
            name
        )


def test_both_languages_say_everything_that_the_page_asks_for():
    english, korean = (
        dict(re.findall(r"^ {4}(\w+): \"(.*)\",$", block, re.MULTILINE))
        for block in re.findall(r"^ {2}(?:en|ko): \{\n(.*?)^ {2}\},$", PIECES["words.js"], re.MULTILINE | re.DOTALL)
    )
    wanted = set(re.findall(r'data-(?:word|label)="(\w+)"', PIECES["index.html"]))
    for text in PIECES.values():
        wanted |= set(re.findall(r'\b(?:word|heading)\("(\w+)"', text))

    assert len(wanted) > 50
    assert english.keys() == korean.keys() >= wanted
    for name, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", korean[name])), name


# How the server does


def test_status_says_what_the_books_and_the_queue_say(client):
    for text in ("a", "ab", "abc"):
        client.post("/classify", json={"inputs": text})
    client.post("/classify", json={"inputs": ""})
    told = client.get("/status").json()
    classify, *others = told["models"]

    assert (told["ready"], told["cores"], told["calls"], told["engine_restarts"]) == (True, 2, 0, 0)
    assert told["queue"] == {"rows": 0, "tokens": 0, "age_ms": 0, "wait_ms": 0}
    assert told["refused"] >= 1
    assert (classify["name"], classify["task"], classify["answered"]) == ("tiny-classify", "classify", 3)
    assert (classify["failed"], classify["cancelled"], classify["in_flight"]) == (0, 0, 0)
    assert classify["recent"]["answers"] == 3
    assert 0 < classify["recent"]["p50_ms"] <= classify["recent"]["p99_ms"] < 1000 * PATIENCE_S
    assert [one["recent"] for one in others] == [{"answers": 0, "p50_ms": None, "p99_ms": None}] * 2


def test_only_recent_answers_count_and_not_without_end():
    stats = RequestStats({"a": "classify"})
    account: ModelStats = stats.models["a"]
    assert account.recent == deque(maxlen=MAX_RECENT)
    account.recent.extend([(0.0, 9.0), (50.0, 0.1), (90.0, 0.2), (100.0, 0.3)])
    look = Snapshot([], stats, QueueState(0, 0, 0.0, 0.0, 0, 0.0), cores=1, ready=True, restarts=0)
    (model,) = status.describe(look, now=100.0).models

    assert model.recent.model_dump() == {"answers": 3, "p50_ms": 200.0, "p99_ms": 300.0}
    assert status.describe(look, now=1000.0).models[0].recent.answers == 0


def test_pages_of_other_origins_may_read_what_this_one_shows():
    assert "Server-Timing" in CORS["expose_headers"]


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(str(locate())) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(artifact_dir: Path) -> Iterator[Process]:
    models = ",".join(str(artifact_dir / f"tiny-{task}") for task in TASKS)
    with serving(artifact_dir, "--models", models, "--spare-engine", "false") as server:
        yield server


@pytest.fixture
def opened(browser: Browser, server: Process) -> Iterator[Page]:
    with visiting(browser, server.url) as page:
        page.locator("#served").wait_for()
        yield page


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """The page, which shall have asked nobody else and broken no rule when it is left."""
    context = browser.new_context(**{"locale": "en-GB"} | options)
    context.set_default_timeout(1000 * PATIENCE_S)
    page = context.new_page()
    wrong: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    try:
        page.goto(url)
        yield page
    finally:
        context.close()
    assert wrong == []
    assert [one for one in asked if not one.startswith(url)] == []


def ask(page: Page, task: str, **fields: str) -> Response:
    """Asks on the page; gives what the server answered."""
    page.locator(f"#tab-{task}").click()
    for name, text in fields.items():
        page.locator(f"#form-{task} [name={name}]").fill(text)
    with page.expect_response(f"**/{task}") as answered:
        page.locator(f"#form-{task} .buttons button").first.click()
    return answered.value


def result(page: Page, task: str) -> Any:
    return page.locator(f"#panel-{task} .result")


@in_a_browser
def test_labels_are_bars_as_long_as_they_are_likely(opened):
    (labels,) = ask(opened, "classify", text="a fine day").json()
    bars = result(opened, "classify").locator(".bars").first.locator("li")

    expect(bars).to_have_count(3)
    assert bars.locator(".name").all_inner_texts() == [label["label"] for label in labels]
    assert bars.locator(".number").all_inner_texts() == [f"{100 * label['score']:.1f} %" for label in labels]
    track = bars.locator(".track").first.bounding_box()["width"]
    for label, bar in zip(labels, bars.locator(".bar").all(), strict=True):
        assert bar.evaluate("bar => bar.getBoundingClientRect().width") == pytest.approx(track * label["score"], abs=1)
    expect(opened.locator("#said")).to_have_text(f"{labels[0]['label']}, {100 * labels[0]['score']:.1f} %.")


@in_a_browser
def test_an_answer_is_marked_where_it_stands_also_behind_characters_of_two_units(opened):
    context = "🙂🙂 𝒜 one two three 👩‍🚀 four"
    answers = ask(opened, "qa", question="how many?", context=context).json()
    marked = result(opened, "qa").locator("mark")

    for place, answer in enumerate(answers):
        if place:
            result(opened, "qa").get_by_role("button").nth(place).click()
        assert answer["answer"] == context[answer["start"] : answer["end"]]
        expect(marked).to_have_text(answer["answer"], use_inner_text=False)
        shown = result(opened, "qa").locator(".answer")
        assert shown.evaluate("shown => shown.textContent") == context
        assert shown.evaluate("shown => shown.firstChild.textContent") == context[: answer["start"]]
    assert len({answer["start"] for answer in answers}) > 1


@in_a_browser
def test_candidates_stand_in_the_places_of_the_masks_and_can_be_chosen(opened):
    first, second = ask(opened, "fill-mask", text="a [MASK] b [MASK] c").json()
    shown = result(opened, "fill-mask").locator(".answer")
    filled = "a {} b {} c".format

    expect(shown).to_have_text(filled(first[0]["token_str"], second[0]["token_str"]))
    choices = result(opened, "fill-mask").get_by_role("button")
    expect(choices).to_have_count(10)
    choices.nth(5 + 2).focus()
    opened.keyboard.press("Enter")
    expect(shown).to_have_text(filled(first[0]["token_str"], second[2]["token_str"]))
    expect(choices.nth(5 + 2)).to_have_attribute("aria-pressed", "true")
    expect(choices.nth(5)).to_have_attribute("aria-pressed", "false")

    (best, *_) = ask(opened, "fill-mask", text="only [MASK]").json()
    expect(shown).to_have_text(f"only {best['token_str']}")


@in_a_browser
def test_what_the_very_request_took_is_told(opened):
    response = ask(opened, "classify", text="a fine day")
    timing = response.headers["server-timing"]
    took = result(opened, "classify").locator(".bars").nth(1).locator("li")

    expect(took).to_have_count(6)
    assert took.locator(".number").all_inner_texts() == [f"{ms} ms" for ms in re.findall(r"dur=([\d.]+)", timing)]
    facts = result(opened, "classify").locator("dl")
    expect(facts.locator("dt:text('Rows of its batch') + dd")).to_have_text(re.search(r"rows=(\d+)", timing)[1])
    expect(facts.locator("dt:text-is('Tokens') + dd")).to_have_text(response.headers["x-compute-tokens"])
    expect(facts.locator("dt:text('Engine') + dd")).to_have_text("echo")


@in_a_browser
def test_a_text_is_shown_as_text(opened):
    text = "<img src=x onerror=alert(1)><b>&lt;</b>"
    ask(opened, "qa", question="<b>?", context=text)

    assert result(opened, "qa").locator(".answer").evaluate("shown => shown.textContent") == text
    expect(opened.locator("#panel-qa :is(img, b, script)")).to_have_count(0)
    assert (
        opened.evaluate(
            "() => { try { document.body.innerHTML = '<i></i>'; return 'let'; } catch (error) { return error.name; } }"
        )
        == "TypeError"
    )  # whoever changes the page cannot do it otherwise either


@in_a_browser
def test_an_error_is_shown_as_the_server_says_it(opened):
    for task, fields in {
        "classify": {"text": " "},
        "qa": {"question": "", "context": "me"},
        "fill-mask": {"text": "no gap"},
    }.items():
        response = ask(opened, task, **fields)
        problem = response.json()

        assert response.status == 422
        expect(result(opened, task)).to_contain_text(problem["detail"])
        expect(result(opened, task)).to_contain_text(problem["code"])
        expect(result(opened, task)).to_contain_text(response.headers["x-request-id"])
        expect(opened.locator("#said")).to_have_text(problem["detail"])
    ask(opened, "classify", text="better")
    expect(result(opened, "classify").locator(".problem")).to_have_count(0)


@in_a_browser
def test_the_models_card_and_how_the_server_does_are_shown(opened):
    expect(opened.locator("#card")).to_contain_text("tiny-classify")
    expect(opened.locator("#card")).to_contain_text("bad, good, neither")
    expect(opened.locator("#card pre")).to_have_text(json.dumps({"data": "none", "n": 0}, indent=2))
    opened.locator("#tab-qa").click()
    expect(opened.locator("#card")).to_contain_text("tiny-qa")

    row = opened.locator("#status tbody tr").nth(1)
    before = int(row.locator("td").nth(2).inner_text())
    ask(opened, "qa", question="who?", context="it was me")
    expect(row.locator("td").nth(2)).to_have_text(str(before + 1))
    assert all(float(row.locator("td").nth(place).inner_text()) > 0 for place in (0, 1))
    with opened.expect_response("**/status"):  # and goes on by itself
        pass


@in_a_browser
def test_the_page_speaks_korean_to_who_reads_it_and_changes_when_told(browser, server):
    with visiting(browser, server.url, locale="ko-KR") as page:
        expect(page.locator("html")).to_have_attribute("lang", "ko")
        expect(page.locator("#tab-qa")).to_have_text("질문에 답하기")
        expect(page.locator("#tabs")).to_have_attribute("aria-label", "작업")
        ask(page, "qa", question="who?", context="it was me")
        expect(result(page, "qa")).to_contain_text("답의 위치")
        before = page.locator("#panel-qa .answer").inner_text()
        page.locator("#language").select_option("en")
        expect(page.locator("html")).to_have_attribute("lang", "en")
        expect(result(page, "qa")).to_contain_text("Where it stands")
        expect(page.locator("#status")).to_contain_text("Cores at work")
        assert page.locator("#panel-qa .answer").inner_text() == before
        assert not re.search("[가-힣]", page.locator("main").inner_text())


@in_a_browser
def test_everything_can_be_done_by_keyboard(opened):
    opened.locator("#language").focus()
    opened.keyboard.press("Tab")
    expect(opened.locator("#tab-classify")).to_be_focused()
    for key, task in (
        ("ArrowRight", "qa"),
        ("End", "fill-mask"),
        ("ArrowRight", "classify"),
        ("ArrowLeft", "fill-mask"),
    ):
        opened.keyboard.press(key)
        expect(opened.locator(f"#tab-{task}")).to_be_focused()
        expect(opened.get_by_role("tabpanel")).to_have_attribute("id", f"panel-{task}")
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    opened.keyboard.press("Home")
    opened.keyboard.press("Tab")  # past the other tabs
    expect(opened.locator("#classify-model")).to_be_focused()
    opened.keyboard.press("Shift+Tab")
    opened.keyboard.press("End")
    opened.keyboard.press("Tab")
    opened.keyboard.press("Tab")
    expect(opened.locator("#fill-mask-text")).to_be_focused()
    opened.keyboard.press("Control+A")
    opened.keyboard.type("a  b")
    opened.keyboard.press("ArrowLeft")
    opened.keyboard.press("ArrowLeft")
    opened.keyboard.press("Tab")
    opened.keyboard.press("Tab")
    opened.keyboard.press("Space")  # inserts a mask where the cursor was, and goes back there
    expect(opened.locator("#fill-mask-text")).to_have_value("a [MASK] b")
    expect(opened.locator("#fill-mask-text")).to_be_focused()
    opened.keyboard.press("Tab")
    with opened.expect_response("**/fill-mask") as answered:
        opened.keyboard.press("Enter")
    expect(result(opened, "fill-mask").locator("mark")).to_have_text(answered.value.json()[0]["token_str"])


@in_a_browser
@pytest.mark.parametrize(
    ("scheme", "width", "tasks"), [("light", 1200, TASKS), ("dark", 320, TASKS[:2])], ids=["light", "dark"]
)
def test_nothing_stands_in_the_way_of_assistive_technology(scheme, width, tasks, browser, server):
    """By axe-core's rules, of contrast too; with an error, and with answers."""
    with visiting(browser, server.url, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
        asked = {"text": ""}, {"question": "who?", "context": "it was me"}, {"text": "a [MASK] b [MASK]"}
        for task, fields in zip(tasks, asked, strict=False):
            ask(page, task, **fields)
            expect(result(page, task)).not_to_be_empty()
            found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing to scroll to sideways
        grounds = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", grounds))) > 380) == (scheme == "light")


@in_a_browser
def test_a_server_that_has_gone_is_said_to_have(browser, server):
    with visiting(browser, server.url) as page:
        page.locator("#served").wait_for()
        page.context.set_offline(True)
        page.locator("#form-classify .buttons button").first.click()
        expect(result(page, "classify")).to_have_text("The server cannot be reached.")
        page.context.set_offline(False)
        ask(page, "classify", text="again")
        expect(result(page, "classify").locator(".bars")).to_have_count(2)


@in_a_browser
def test_where_keys_are_needed_the_page_asks_for_one_and_keeps_it_nowhere(browser, artifact_dir, tmp_path):
    key, line = make_key("alice")
    (tmp_path / "keys").write_text(line)
    options = "--api-keys-file", str(tmp_path / "keys"), "--spare-engine", "false"
    with serving(artifact_dir, *options) as server, visiting(browser, server.url) as page:
        expect(page.locator("#key")).to_be_focused()
        expect(page.locator("#served")).to_be_hidden()
        expect(page.locator("#trouble")).to_be_hidden()
        page.keyboard.type("열쇠")
        with page.expect_response("**/models") as refused:
            page.keyboard.press("Enter")
        expect(page.locator("#trouble")).to_have_text(refused.value.json()["detail"])
        page.keyboard.type(key)
        page.keyboard.press("Enter")
        expect(page.locator("#tab-classify")).to_be_focused()
        expect(page.locator("#key-form")).to_be_hidden()
        assert ask(page, "classify", text="fine").status == 200
        expect(page.locator("#status tbody td").nth(2)).to_have_text("1")
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        assert key not in page.content()
        page.reload()
        expect(page.locator("#key")).to_be_focused()
