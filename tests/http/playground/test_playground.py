"""The playground: its files, GET /status, and the page in a browser."""

from __future__ import annotations

import json
import re
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Response, expect

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import playground as files
from swiftlet_serve.http.endpoints import status
from swiftlet_serve.http.gate.api_keys import make_key
from swiftlet_serve.http.gates import CORS_EXPOSED
from swiftlet_serve.telemetry.request_stats import MAX_RECENT, ModelStats, RequestStats
from swiftlet_serve.telemetry.snapshot import QueueState, Snapshot
from tests.support.apps import TASKS
from tests.support.browsing import locate, visit, visiting
from tests.support.fakes import PATIENCE_S
from tests.support.processes import serving
from tests.support.tiers import first

SOURCES = {path.name: path.read_text("utf-8") for path in files.DIRECTORY.iterdir() if path.suffix in files.MEDIA_TYPES}

in_a_browser = pytest.mark.skipif(locate() is None, reason="Chromium is not installed")


@pytest.mark.parametrize("path", files.FILES)
def test_playground_files_have_security_headers(path, client):
    response = client.get(path)
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))

    assert response.status_code == 200
    assert response.headers["content-type"] in files.MEDIA_TYPES.values()
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert all(value in ("'none'", "'self'", "'script'") for value in policy.values())  # no inline code, no other host


@pytest.mark.parametrize("path", files.FILES)
def test_playground_file_is_sent_again_only_after_a_change(path, client):
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


def test_playground_answers_head_without_a_body(client):
    for path in files.FILES:
        got, head = client.get(path), client.head(path)

        assert (head.status_code, head.content) == (200, b"")
        names = set(got.headers) - {"x-request-id"}
        assert {name: head.headers[name] for name in names} == {name: got.headers[name] for name in names}


def test_playground_serves_each_of_its_files():
    assert len(SOURCES) == len(files.FILES)


def test_playground_uses_no_other_host_and_no_unsafe_code():
    names = re.compile(r"""https?://(?!www\.w3\.org/2000/svg")|(?:src|href|import|from)\s*[=(]?\s*["']//""")
    for name, text in SOURCES.items():
        assert not names.search(text), name
        assert not re.search(r"\son\w+=|style=|<script(?! type=\"module\" src=)|javascript:", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|localStorage|cookie", text), (
            name
        )


def texts(file: str, name: str) -> dict[str, str]:
    """Returns the texts of an exported object."""
    (block,) = re.findall(rf"^export const {name} = \{{\n(.*?)^\}};$", SOURCES[file], re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^ {2}(\w+): \"(.*)\",$", block, re.MULTILINE))


def test_playground_has_every_error_and_parameter_in_korean(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    shown = {one for name, schema in schemas.items() if name.endswith("Parameters") for one in schema["properties"]}

    assert texts("korean.js", "KOREAN_ERRORS").keys() == {
        code for kind in SwiftletError.__subclasses__() for code in kind.codes
    }
    assert texts("korean.js", "KOREAN_PARAMETERS").keys() >= shown - {"topk", "max_question_len"}


def test_playground_has_every_text_in_both_languages():
    english, korean = texts("english.js", "ENGLISH"), texts("korean.js", "KOREAN")
    wanted = set(re.findall(r'data-(?:message|label)="(\w+)"', SOURCES["index.html"]))
    for text in SOURCES.values():
        wanted |= set(re.findall(r'\b(?:message|heading|folded|unfolding)\("(\w+)"', text))
        wanted |= set(re.findall(r'\b(?:title|action|label): "(\w+)"', text))

    assert len(wanted) > 50
    assert english.keys() == korean.keys() >= wanted
    for name, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", korean[name])), name


def test_status_reports_request_statistics_and_the_queue(client):
    for text in ("a", "ab", "abc"):
        client.post("/classify", json={"inputs": text})
    client.post("/classify", json={"inputs": ""})
    reported = client.get("/status").json()
    classify, *others = reported["models"]

    assert (reported["ready"], reported["cores"], reported["calls"], reported["engine_restarts"]) == (True, 2, 0, 0)
    assert reported["queue"] == {"sequences": 0, "tokens": 0, "age_ms": 0, "wait_ms": 0}
    assert reported["refused"] >= 1
    assert (classify["name"], classify["task"], classify["answered"]) == ("tiny-classify", "classify", 3)
    assert (classify["failed"], classify["cancelled"], classify["in_flight"]) == (0, 0, 0)
    assert classify["recent"]["answers"] == 3
    assert 0 < classify["recent"]["p50_ms"] <= classify["recent"]["p99_ms"] < 1000 * PATIENCE_S
    assert [one["recent"] for one in others] == [{"answers": 0, "p50_ms": None, "p99_ms": None}] * 2


def test_status_counts_recent_responses_only():
    stats = RequestStats()
    stats.add_model("a", "classify")
    model_stats: ModelStats = stats.models["a"]
    assert model_stats.recent == deque(maxlen=MAX_RECENT)
    model_stats.recent.extend([(0.0, 9.0), (50.0, 0.1), (90.0, 0.2), (100.0, 0.3)])
    about: Any = {"cores": 1, "ready": True, "restarts": 0, "kernel_faults": 0, "workers": {}, "connections": 0}
    snapshot = Snapshot([], stats, QueueState(0, 0, 0.0, 0.0, 0, 0.0), loop_lag_s=0.0, **about)
    (model,) = status.describe(snapshot, now=100.0).models

    assert model.recent.model_dump() == {"answers": 3, "p50_ms": 200.0, "p99_ms": 300.0}
    assert status.describe(snapshot, now=1000.0).models[0].recent.answers == 0


def test_cors_exposes_the_headers_that_the_playground_shows():
    assert "Server-Timing" in CORS_EXPOSED


@pytest.fixture(scope="module")
def models(artifact_dir: Path) -> str:
    return ",".join(str(artifact_dir / f"tiny-{task}") for task in TASKS)


def ask(page: Page, task: str, **fields: str) -> Response:
    """Submits a request on the page. Returns the server's response."""
    page.locator(f"#tab-{task}").click()
    for name, text in fields.items():
        page.locator(f"#form-{task} [name={name}]").fill(text)
    with page.expect_response(f"**/{task}") as answered:
        page.locator(f"#form-{task} .buttons button").first.click()
    return answered.value


def result(page: Page, task: str) -> Any:
    return page.locator(f"#panel-{task} .result")


@in_a_browser
def test_page_shows_labels_as_bars(opened):
    (labels,) = ask(opened, "classify", text="a fine day").json()
    bars = result(opened, "classify").locator(".bars").first.locator("li")

    expect(bars).to_have_count(3)
    assert bars.locator(".name").all_inner_texts() == [label["label"] for label in labels]
    assert bars.locator(".number").all_inner_texts() == [f"{100 * label['score']:.1f} %" for label in labels]
    track = bars.locator(".track").first.bounding_box()["width"]
    for label, bar in zip(labels, bars.locator(".bar").all(), strict=True):
        assert bar.evaluate("bar => bar.getBoundingClientRect().width") == pytest.approx(track * label["score"], abs=1)
    expect(opened.locator("#announcement")).to_have_text(f"{labels[0]['label']}, {100 * labels[0]['score']:.1f} %.")


@in_a_browser
def test_page_marks_the_answer_behind_surrogate_pairs(opened):
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
def test_page_inserts_the_chosen_candidates(opened):
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
def test_page_shows_the_times_of_the_request(opened):
    response = ask(opened, "classify", text="a fine day")
    timing = response.headers["server-timing"]
    times = result(opened, "classify").locator(".bars").nth(1).locator("li")

    expect(times).to_have_count(6)
    assert times.locator(".number").all_inner_texts() == [f"{ms} ms" for ms in re.findall(r"dur=([\d.]+)", timing)]
    facts = result(opened, "classify").locator("dl")
    expect(facts.locator("dt:text('Batch size') + dd")).to_have_text(re.search(r"sequences=(\d+)", timing)[1])
    expect(facts.locator("dt:text-is('Tokens') + dd")).to_have_text(response.headers["x-compute-tokens"])
    expect(facts.locator("dt:text('Engine') + dd")).to_have_text("echo")


@in_a_browser
def test_page_tells_that_a_text_was_cut(opened):
    response = ask(opened, "classify", text="a " * 100)
    notice = result(opened, "classify").locator(".truncated")

    whole, read = response.headers["x-input-tokens"], response.headers["x-compute-tokens"]
    expect(notice).to_contain_text(f"of {whole} tokens, the model read {read}.")
    ask(opened, "classify", text="a fine day")
    expect(notice).to_have_count(0)


@in_a_browser
def test_page_shows_html_as_text(opened):
    text = "<img src=x onerror=alert(1)><b>&lt;</b>"
    ask(opened, "qa", question="<b>?", context=text)

    assert result(opened, "qa").locator(".answer").evaluate("shown => shown.textContent") == text
    expect(opened.locator("#panel-qa :is(img, b, script)")).to_have_count(0)
    assert (
        opened.evaluate(
            "() => { try { document.body.innerHTML = '<i></i>'; return 'let'; } catch (error) { return error.name; } }"
        )
        == "TypeError"
    )  # trusted types forbid it to all scripts


@in_a_browser
def test_page_shows_the_errors_of_the_server(opened):
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
        expect(opened.locator("#announcement")).to_have_text(problem["detail"])
    ask(opened, "classify", text="better")
    expect(result(opened, "classify").locator(".problem")).to_have_count(0)


@in_a_browser
def test_page_shows_the_model_card_and_the_server_status(opened):
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
    with opened.expect_response("**/status"):  # the page refreshes it periodically
        pass


@in_a_browser
def test_page_selects_and_changes_the_language(browser, server):
    with visiting(browser, server.url, locale="ko-KR") as page:
        expect(page.locator("html")).to_have_attribute("lang", "ko")
        expect(page.locator("#tab-qa")).to_have_text("질의응답")
        expect(page.locator("#tabs")).to_have_attribute("aria-label", "작업")
        ask(page, "qa", question="who?", context="it was me")
        expect(result(page, "qa")).to_contain_text("답의 위치")
        before = page.locator("#panel-qa .answer").inner_text()
        page.locator("#language").select_option("en")
        expect(page.locator("html")).to_have_attribute("lang", "en")
        expect(result(page, "qa")).to_contain_text("Answer in its context")
        expect(page.locator("#status")).to_contain_text("Engine calls in progress")
        assert page.locator("#panel-qa .answer").inner_text() == before
        assert not re.search("[가-힣]", page.locator("main").inner_text())


@in_a_browser
def test_page_can_be_used_by_keyboard(opened):
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
    opened.keyboard.press("Space")  # inserts a mask at the cursor, and moves the focus back
    expect(opened.locator("#fill-mask-text")).to_have_value("a [MASK] b")
    expect(opened.locator("#fill-mask-text")).to_be_focused()
    opened.keyboard.press("Tab")
    with opened.expect_response("**/fill-mask") as answered:
        opened.keyboard.press("Enter")
    expect(result(opened, "fill-mask").locator("mark")).to_have_text(answered.value.json()[0]["token_str"])


@in_a_browser
@pytest.mark.parametrize(
    ("scheme", "width", "tasks"),
    first([("light", 1200, TASKS), ("dark", 320, TASKS[:2])], ("dark", 320, TASKS[:2])),
    ids=["light", "dark"],
)
def test_page_is_accessible(scheme, width, tasks, browser, server):
    """By the rules of axe-core, contrast included, with an error and with results."""
    with visiting(browser, server.url, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
        requests = {"text": ""}, {"question": "who?", "context": "it was me"}, {"text": "a [MASK] b [MASK]"}
        for task, fields in zip(tasks, requests, strict=False):
            ask(page, task, **fields)
            expect(result(page, task)).not_to_be_empty()
            found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width  # no horizontal scrolling
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) > 380) == (scheme == "light")


@in_a_browser
def test_page_reports_an_unreachable_server(browser, server):
    with visiting(browser, server.url) as page:
        page.locator("#served").wait_for()
        page.context.set_offline(True)
        page.locator("#form-classify .buttons button").first.click()
        expect(result(page, "classify")).to_have_text("Cannot reach the server. Check that it is running.")
        page.context.set_offline(False)
        ask(page, "classify", text="again")
        expect(result(page, "classify").locator(".bars")).to_have_count(2)


@in_a_browser
def test_page_asks_for_the_api_key_and_does_not_store_it(english, artifact_dir, tmp_path):
    key, line = make_key("alice")
    (tmp_path / "keys").write_text(line)
    options = "--api-keys-file", str(tmp_path / "keys")
    with serving(artifact_dir, *options) as server, visit(english, server.url) as page:
        expect(page.locator("#key")).to_be_focused()
        expect(page.locator("#served")).to_be_hidden()
        expect(page.locator("#error")).to_be_hidden()
        page.keyboard.type("열쇠")
        with page.expect_response("**/models") as refused:
            page.keyboard.press("Enter")
        expect(page.locator("#error")).to_have_text(refused.value.json()["detail"])
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
