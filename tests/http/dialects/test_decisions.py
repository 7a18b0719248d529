"""Decisions as OpenAI asks for them. A classifier answers by the logits of our own route."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from swiftlet_models.artifact import Decisions, Fit
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.apps import SECRET
from tests.support.artifacts import make_artifact, reseal

TEXT = "A warm film 🎬, 서울의 봄."
TEMPERATURE = 2.0
LABELS = ("bad", "good", "neither")
KNOWN = Decisions(
    temperature=TEMPERATURE,
    predicates={"The text is positive.": "good"},
    scores={"How positive is it?": ("bad", "neither", "good")},
)
PREDICATE = {"type": "predicate", "instructions": "The text is positive."}
CHOICE = {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]}
LEVELS = [{"label": "low"}, {"label": "middle"}, {"label": "high"}]
SCORE = {"type": "score", "instructions": "How positive is it?", "levels": LEVELS}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server with a calibrated classifier, and a reader, over the echo engine."""
    directory = tmp_path_factory.mktemp("decisions")
    paths = [reseal(make_artifact(directory, "classify"), decisions=KNOWN), make_artifact(directory, "qa").path]
    paths.append(reseal(make_artifact(directory, "zero-shot"), decisions=Decisions(temperature=TEMPERATURE)))
    runtime = LocalRuntime.load(Settings(models=tuple(map(str, paths)), engine="echo", cores=2))
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def odds(client):
    """The exponentials of the scaled logits of TEXT, by label."""
    body = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
    (logits,) = client.post("/classify", json=body).json()
    return {one["label"]: math.exp(one["score"] / TEMPERATURE) for one in logits}


def decide(client, *questions, **body):
    return client.post("/v1/decisions", json={"model": "tiny-classify", "input": TEXT, "questions": questions} | body)


def test_predicate_is_the_probability_of_its_label(client, odds):
    response = decide(client, PREDICATE).json()

    probability = pytest.approx(odds["good"] / sum(odds.values()))
    assert response["answers"] == [{"type": "predicate", "name": None, "probability": probability}]
    assert response["model"] == "tiny-classify"
    tokens = response["usage"].pop("input_tokens")
    assert tokens == response["usage"].pop("total_tokens") > 0
    assert response["usage"] == {
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def test_choice_is_among_the_given_labels(client, odds):
    (answer,) = decide(client, CHOICE | {"name": "mood"}).json()["answers"]

    total = odds["good"] + odds["bad"]
    good, bad = odds["good"] / total, odds["bad"] / total
    assert answer["probabilities"] == [
        {"value": "good", "probability": pytest.approx(good)},
        {"value": "bad", "probability": pytest.approx(bad)},
    ]
    assert (answer["name"], answer["choice"]) == ("mood", "good" if good > bad else "bad")
    assert answer["confidence"] == pytest.approx(2 * max(good, bad) - 1)


def test_score_is_the_expected_level(client, odds):
    (answer,) = decide(client, SCORE).json()["answers"]

    levels = [odds[label] / sum(odds.values()) for label in ("bad", "neither", "good")]
    assert [one["probability"] for one in answer["probabilities"]] == pytest.approx(levels)
    assert [(one["label"], one["value"]) for one in answer["probabilities"]] == [("low", 0), ("middle", 1), ("high", 2)]
    assert answer["score"] == pytest.approx(levels[1] + 2 * levels[2])
    assert answer["confidence"] == pytest.approx((3 * max(levels) - 1) / 2)


def test_questions_of_a_request_share_one_sequence(client):
    one, several = decide(client, PREDICATE), decide(client, CHOICE, PREDICATE, SCORE)

    assert several.json()["answers"][1] == one.json()["answers"][0]
    assert several.json()["usage"] == one.json()["usage"]


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        [{"role": "user", "content": TEXT}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}],
    ],
)
def test_messages_are_their_texts(content, client):
    assert decide(client, PREDICATE, input=content).json() == decide(client, PREDICATE).json()


def test_instructions_may_be_parts(client):
    parts = [{"type": "input_text", "text": PREDICATE["instructions"]}]

    assert decide(client, PREDICATE | {"instructions": parts}).json() == decide(client, PREDICATE).json()


def test_parts_may_be_json(client):
    data = {"a": ["서울"]}
    as_text = json.dumps(data, ensure_ascii=False)
    content = [{"role": "user", "content": [{"type": "input_text", "text": "A"}, {"type": "input_json", "data": data}]}]
    instructions = [{"type": "input_json", "data": [data]}]
    question, written = (
        {"type": "predicate", "instructions": instructions},
        PREDICATE | {"instructions": f"[{as_text}]"},
    )

    response = decide(client, question, model="tiny-zero-shot", input=content)
    assert response.status_code == 200
    assert response.json() == decide(client, written, model="tiny-zero-shot", input=f"A\n{as_text}").json()


def log_odds(client, statement):
    """The scaled log-odds of a statement about TEXT, from our own route."""
    parameters = {"candidate_labels": [statement], "hypothesis_template": "{}", "multi_label": True}
    (found,) = client.post("/zero-shot", json={"inputs": TEXT, "parameters": parameters}).json()
    return math.log(found["score"] / (1 - found["score"])) / TEMPERATURE


def test_zero_shot_model_answers_every_question(client):
    choices = [{"value": "film", "description": "A film."}, {"value": True}, {"value": False}]
    questions = [
        {"type": "predicate", "instructions": "It is warm."},
        {"type": "choice", "instructions": "What?", "choices": choices},
        {"type": "score", "instructions": "How warm?", "levels": LEVELS},
    ]
    predicate, choice, score = decide(client, *questions, model="tiny-zero-shot").json()["answers"]

    assert predicate["probability"] == pytest.approx(1 / (1 + math.exp(-log_odds(client, "It is warm."))))
    odds = [math.exp(log_odds(client, f"What? {text}")) for text in ("A film.", "yes", "no")]
    expected = [each / sum(odds) for each in odds]
    assert [one["probability"] for one in choice["probabilities"]] == pytest.approx(expected)
    assert [one["value"] for one in choice["probabilities"]] == ["film", True, False]
    assert choice["choice"] == ["film", True, False][expected.index(max(expected))]
    odds = [math.exp(log_odds(client, f"How warm? {text}")) for text in ("low", "middle", "high")]
    assert score["score"] == pytest.approx((odds[1] + 2 * odds[2]) / sum(odds))


def test_options_of_the_same_meaning_share_its_probability(client):
    def choose(*values):
        choices = [{"value": value, "description": value.rstrip("*")} for value in values]
        question = {"type": "choice", "instructions": "What?", "choices": choices}
        (answer,) = decide(client, question, model="tiny-zero-shot").json()["answers"]
        return {one["value"]: one["probability"] for one in answer["probabilities"]}

    once, twice = choose("a", "b"), choose("a", "a*", "b")

    assert (twice["a"], twice["a*"]) == (pytest.approx(once["a"] / 2), twice["a"])
    assert twice["b"] == pytest.approx(once["b"])
    assert choose("a", "a*") == {"a": 0.5, "a*": 0.5}


def test_answers_do_not_depend_on_other_questions(client):
    questions = [PREDICATE, {"type": "choice", "instructions": "What?", "choices": [{"value": "a"}, {"value": "b"}]}]
    together = decide(client, *questions, model="tiny-zero-shot").json()["answers"]

    assert together == [decide(client, one, model="tiny-zero-shot").json()["answers"][0] for one in questions]


@pytest.fixture(scope="module")
def fitted_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a zero-shot model with a fit for each type of question. It is never sure enough of a choice."""
    fits = {"predicate": Fit(4.0, -1.5), "choice": Fit(threshold=1.0), "score": Fit(0.5, threshold=0.1)}
    artifact = make_artifact(tmp_path_factory.mktemp("fits"), "zero-shot")
    path = reseal(artifact, decisions=Decisions(temperature=TEMPERATURE, fits=fits))
    runtime = LocalRuntime.load(Settings(models=(str(path),), engine="echo", cores=1))
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


def test_each_type_of_question_has_its_fit(fitted_client):
    predicate, score = {"type": "predicate", "instructions": "It is warm."}, SCORE | {"instructions": "How warm?"}
    answers = decide(fitted_client, predicate, score, CHOICE | {"name": "a"}, model="tiny-zero-shot").json()["answers"]
    warm = TEMPERATURE * log_odds(fitted_client, "It is warm.")
    odds = [math.exp(2 * TEMPERATURE * log_odds(fitted_client, f"How warm? {level['label']}")) for level in LEVELS]

    assert answers[0]["probability"] == pytest.approx(1 / (1 + math.exp(-(warm - 1.5) / 4)))
    levels = [one["probability"] for one in answers[1]["probabilities"]]
    assert levels == pytest.approx([one / sum(odds) for one in odds])
    assert answers[2] == {"type": "refusal", "name": "a"}


def test_system_one_marks_answers_that_are_not_sure_enough(fitted_client):
    questions = {
        "which": {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}},
        "warm": {"type": "noul", "criteria": {"true": "It is warm."}},
    }
    body = {"model": "jev-latest", "state": TEXT, "questions": questions}
    answers = fitted_client.post("/v1/systemone", json=body).json()["answers"]

    assert answers["which"]["x_refused"] is True
    assert "choice" in answers["which"]
    assert "x_refused" not in answers["warm"]


def test_too_many_options_are_refused(client):
    choice = CHOICE | {"choices": [{"value": str(i)} for i in range(200)]}
    response = decide(client, choice, choice | {"instructions": "Other?"}, model="tiny-zero-shot")

    assert (response.status_code, response.json()["error"]["param"]) == (422, "/questions")


@pytest.mark.parametrize(
    "question",
    [
        PREDICATE | {"instructions": SECRET},
        PREDICATE | {"instructions": " "},
        PREDICATE | {"instructions": [{"type": "input_image", "image_url": SECRET}]},
        PREDICATE | {"instructions": [{"type": "input_json", "data": SECRET}]},
        PREDICATE | {"instructions": [{"type": "input_json", "data": {}}]},
        PREDICATE | {"type": SECRET},
        PREDICATE | {"name": SECRET * 99},
        CHOICE | {"choices": [{"value": "good"}, {"value": SECRET}]},
        CHOICE | {"choices": [{"value": "good"}, {"value": "good"}]},
        CHOICE | {"choices": [{"value": "good"}]},
        CHOICE | {"choices": [{"value": True}, {"value": False}]},
        CHOICE | {"choices": [{"value": SECRET}] * 256},
        SCORE | {"instructions": SECRET},
        SCORE | {"levels": LEVELS[:2]},
        SCORE | {"levels": [{"label": SECRET}] * 11},
        {"type": "score"},
        SECRET,
    ],
)
def test_question_that_cannot_be_answered_is_refused(question, client):
    response = decide(client, PREDICATE, question)

    assert response.status_code == 422
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("validation_failed", "invalid_request_error")
    assert error["param"].startswith("/questions/1")
    assert SECRET not in response.text


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": SECRET}, 404, "unknown_model"),
        ({"model": "tiny-qa"}, 404, "unknown_model"),
        ({"questions": []}, 422, "validation_failed"),
        ({"questions": [PREDICATE] * 401}, 422, "validation_failed"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 422, "validation_failed"),
        ({"input": [{"type": "function_call", "arguments": SECRET}]}, 422, "validation_failed"),
        ({"input": []}, 422, "empty_input"),
        ({"input": f"{SECRET} " * 99}, 422, "input_too_long"),
    ],
)
def test_invalid_request_is_refused(body, status, code, client):
    response = decide(client, PREDICATE, **body)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert SECRET not in response.text


@pytest.mark.parametrize("blank", [" ", "\u200b"])
def test_blank_parts_of_questions_are_named(blank, every_client):
    value = {"value": "a"}
    questions = [
        ({"type": "predicate", "instructions": blank}, "/questions/1/instructions"),
        ({"type": "choice", "instructions": "Which?", "choices": [value, {"value": blank}]}, "/questions/1/choices/1"),
        (
            {"type": "choice", "instructions": "Which?", "choices": [value, {"value": "b", "description": blank}]},
            "/questions/1/choices/1",
        ),
        (
            {"type": "score", "instructions": "How?", "levels": [{"label": blank}, {"label": "a"}]},
            "/questions/1/levels/0",
        ),
    ]
    first = {"type": "predicate", "instructions": "Is it good?"}
    for question, place in questions:
        body = {"model": "zero-shot", "input": "a", "questions": [first, question]}
        response = every_client.post("/v1/decisions", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (422, place)
